//! Decodes `reload`: when changed files are applied.

use crate::compile::scalar;
use crate::language::RELOAD;
use crate::plan::ReloadPlan;
use crate::raw::{Fields, ProblemReport, YamlNode};

pub(super) fn reload<'s>(node: Option<&YamlNode<'s>>, report: &mut ProblemReport<'s>) -> Option<ReloadPlan> {
    let ReloadPlan { quiet, max_loss } = ReloadPlan::default();
    let Some(node) = node else { return Some(ReloadPlan { quiet, max_loss }) };
    let fields = Fields::open(node, &RELOAD, report)?;
    let quiet = fields.get("quiet").map_or(Some(quiet), |node| scalar::duration(node, report));
    let max_loss = fields
        .get("max_loss")
        .map_or(Some(max_loss), |node| scalar::ratio(node, "write `0.0001%` to refuse every loss", report));
    Some(ReloadPlan { quiet: quiet?, max_loss: max_loss? })
}
