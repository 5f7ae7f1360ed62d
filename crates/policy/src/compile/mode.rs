//! How a rule acts: on whom it is enforced, and what becomes of those who do not listen.

use tidegate_core::{Penalty, PenaltyError, TimeSpan};

use crate::language::{CANARY, MODES, PENALTY};
use crate::plan::{Mode, Share};
use crate::raw::{Fields, Finding, ProblemReport, YamlNode, YamlValue};
use crate::render::quote;
use crate::units::{self, QuantityError, span_text};

use super::scalar;

/// The mode of the rule with these keys.
pub(super) fn mode<'s>(fields: &Fields<'_, 's>, report: &mut ProblemReport<'s>) -> Option<Mode> {
    let Some(node) = fields.get("mode") else { return Some(Mode::Enforce) };
    if let YamlValue::Mapping(_) = &node.value {
        let fields = Fields::open(node, &CANARY, report)?;
        let node = fields.require("canary", report)?;
        return share(node, report).map(Mode::Canary);
    }
    if matches!(&node.value, YamlValue::Scalar { text, .. } if text == "canary") {
        let finding = Finding::error(node, "a canary needs a share of clients");
        report.push(finding.hint("write `mode: { canary: 10% }`"));
        return None;
    }
    scalar::choice(node, "mode", MODES, &[Mode::Enforce, Mode::Shadow], report)
}

/// The longest lock-out where nothing else is said.
const DEFAULT_MAX_LOCKOUT: TimeSpan = TimeSpan::from_secs(86_400);

/// The penalty of the rule with these keys and this `window`, if it has one. `None` if it cannot be read.
#[expect(clippy::option_option, reason = "not there, and not readable")]
pub(super) fn penalty<'s>(
    fields: &Fields<'_, 's>,
    window: Option<TimeSpan>,
    report: &mut ProblemReport<'s>,
) -> Option<Option<Penalty>> {
    let Some(node) = fields.get("penalty") else { return Some(None) };
    let fields = Fields::open(node, &PENALTY, report)?;
    let after = fields
        .require("after", report)
        .and_then(|node| scalar::positive(node, "refusals would lock out everybody", report));
    let first = fields.require("for", report).and_then(|node| scalar::duration(node, report));
    let most = match fields.get("doubling_to") {
        Some(node) => scalar::duration(node, report),
        None => first.map(|first| first.max(DEFAULT_MAX_LOCKOUT)),
    };
    let (after, first, most) = (after?, first?, most?);
    let at = |key: &str| fields.get(key).unwrap_or(node);
    let Ok(after) = u32::try_from(after) else {
        let finding = Finding::error(at("after"), format!("{after} is too large"));
        report.push(finding.expected(format!("at most {}", u32::MAX)));
        return None;
    };
    match Penalty::new(after, first, most, window?) {
        Ok(penalty) => Some(Some(penalty)),
        Err(PenaltyError::MostBelowFirst { .. }) => {
            let finding = Finding::error(
                at("doubling_to"),
                format!("the longest lock-out is shorter than the first, {}", span_text(first)),
            );
            report.push(finding.hint("write more than `for`, or leave it out"));
            None
        }
        Err(error) => {
            report.push(Finding::error(node, error.to_string()));
            None
        }
    }
}

fn share(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<Share> {
    const EXPECTED: &str = "a share of clients, such as `10%` or `0.5%`";
    let text = scalar::text(node, EXPECTED, report)?;
    let wrong = |what: String| Finding::error(node, what).expected(EXPECTED);
    let finding = match units::percent(text) {
        Ok(0) => wrong("a canary of nobody enforces nothing".to_owned()).hint("write `mode: shadow` instead"),
        Ok(millionths) => match Share::of_millionths(millionths) {
            Some(share) => return Some(share),
            None => wrong(format!("{} is more than everybody", quote(text)))
                .hint("write `mode: enforce` for everybody"),
        },
        Err(error @ QuantityError::TooFine) => wrong(format!("{} {error}", quote(text)))
            .hint("the smallest share is `0.0001%`, one in a million"),
        Err(QuantityError::Negative) => wrong(format!("{} is negative", quote(text))),
        Err(QuantityError::TooLarge) => wrong(format!("{} is more than everybody", quote(text))),
        Err(_) => {
            let number = text.trim_end_matches('%').trim();
            let meant = number.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 100.0);
            let finding = wrong(format!("{} is not a number of percent", quote(text)));
            match meant {
                Some(_) => finding.hint(format!("write `{number}%`")),
                None => finding.hint("write it like `10%`"),
            }
        }
    };
    report.push(finding);
    None
}
