//! Decodes `mode` (whom a rule is enforced on) and `penalty` (lockouts).

use tidegate_core::{Penalty, PenaltyError, TimeSpan};

use crate::language::{CANARY, MODES, PENALTY, REPORTS};
use crate::plan::{CanaryShare, Mode};
use crate::raw::{Fields, Finding, ProblemReport, YamlNode, YamlValue};
use crate::render::quote;
use crate::units::{self, QuantityError, span_text};

use super::scalar;

/// Whether clients are told about a limit.
pub(super) fn report(fields: &Fields<'_, '_>, report: &mut ProblemReport<'_>) -> Option<bool> {
    let Some(node) = fields.get("report") else { return Some(true) };
    scalar::choice(node, "`report` value", REPORTS, &[true, false], report)
}

/// Decodes the mode of a rule.
pub(super) fn mode<'s>(fields: &Fields<'_, 's>, report: &mut ProblemReport<'s>) -> Option<Mode> {
    let Some(node) = fields.get("mode") else { return Some(Mode::Enforce) };
    if let YamlValue::Mapping(_) = &node.value {
        let fields = Fields::open(node, &CANARY, report)?;
        let node = fields.require("canary", report)?;
        return share(node, report).map(Mode::Canary);
    }
    if matches!(&node.value, YamlValue::Scalar { text, .. } if text == "canary") {
        let finding = Finding::error(node, "`canary` needs a percentage of clients");
        report.push(finding.hint("write `mode: { canary: 10% }`"));
        return None;
    }
    scalar::choice(node, "mode", MODES, &[Mode::Enforce, Mode::Shadow], report)
}

/// The default of `doubling_to`.
const DEFAULT_MAX_LOCKOUT: TimeSpan = TimeSpan::from_secs(86_400);

/// Decodes the penalty of a rule with this `window`, if it has one. Returns `None` if it is invalid.
#[expect(clippy::option_option, reason = "absent and invalid are different")]
pub(super) fn penalty<'s>(
    fields: &Fields<'_, 's>,
    window: Option<TimeSpan>,
    report: &mut ProblemReport<'s>,
) -> Option<Option<Penalty>> {
    let Some(node) = fields.get("penalty") else { return Some(None) };
    let fields = Fields::open(node, &PENALTY, report)?;
    let after = fields.require("after", report).and_then(|node| scalar::positive(node, "`after`", report));
    let first = fields.require("for", report).and_then(|node| scalar::duration(node, report));
    let longest = match fields.get("doubling_to") {
        Some(node) => scalar::duration(node, report),
        None => first.map(|first| first.max(DEFAULT_MAX_LOCKOUT)),
    };
    let (after, first, longest) = (after?, first?, longest?);
    let at = |key: &str| fields.get(key).unwrap_or(node);
    let Ok(after) = u32::try_from(after) else {
        let finding = Finding::error(at("after"), format!("{after} is too large"));
        report.push(finding.expected(format!("at most {}", u32::MAX)));
        return None;
    };
    match Penalty::new(after, first, longest, window?) {
        Ok(penalty) => Some(Some(penalty)),
        Err(PenaltyError::LongestBelowFirst { .. }) => {
            let finding = Finding::error(
                at("doubling_to"),
                format!("`doubling_to` is shorter than `for` ({})", span_text(first)),
            );
            report.push(finding.hint("use a longer duration, or remove `doubling_to`"));
            None
        }
        Err(error) => {
            report.push(Finding::error(node, error.to_string()));
            None
        }
    }
}

fn share(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<CanaryShare> {
    const EXPECTED: &str = "a percentage of clients, for example `10%` or `0.5%`";
    let text = scalar::text(node, EXPECTED, report)?;
    let wrong = |what: String| Finding::error(node, what).expected(EXPECTED);
    let finding = match units::percent(text) {
        Ok(0) => wrong("a canary of 0% enforces nothing".to_owned()).hint("write `mode: shadow` instead"),
        Ok(millionths) => match CanaryShare::from_millionths(millionths) {
            Some(share) => return Some(share),
            None => wrong(format!("{} is more than 100%", quote(text)))
                .hint("write `mode: enforce` to enforce the limit for all clients"),
        },
        Err(error @ QuantityError::TooFine) => {
            wrong(format!("{} {error}", quote(text))).hint("the smallest percentage is `0.0001%`")
        }
        Err(QuantityError::Negative) => wrong(format!("{} is negative", quote(text))),
        Err(QuantityError::TooLarge) => wrong(format!("{} is more than 100%", quote(text))),
        Err(_) => {
            let number = text.trim_end_matches('%').trim();
            let meant = number.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 100.0);
            let finding = wrong(format!("{} is not a percentage", quote(text)));
            match meant {
                Some(_) => finding.hint(format!("write `{number}%`")),
                None => finding.hint("for example `10%`"),
            }
        }
    };
    report.push(finding);
    None
}
