//! How a rule acts: on whom it is enforced.

use crate::language::{CANARY, MODES};
use crate::plan::{Mode, Share};
use crate::quantity::{self, QuantityError};
use crate::raw::{Fields, Finding, Node, Report, Value};
use crate::render::quote;

use super::scalar;

/// The mode of the rule with these keys.
pub(super) fn mode<'s>(fields: &Fields<'_, 's>, report: &mut Report<'s>) -> Option<Mode> {
    let Some(node) = fields.get("mode") else { return Some(Mode::Enforce) };
    if let Value::Mapping(_) = &node.value {
        let fields = Fields::open(node, &CANARY, report)?;
        let node = fields.require("canary", report)?;
        return share(node, report).map(Mode::Canary);
    }
    if matches!(&node.value, Value::Scalar { text, .. } if text == "canary") {
        let finding = Finding::error(node, "a canary needs a share of clients");
        report.push(finding.hint("write `mode: { canary: 10% }`"));
        return None;
    }
    scalar::choice(node, "mode", MODES, &[Mode::Enforce, Mode::Shadow], report)
}

fn share(node: &Node<'_>, report: &mut Report<'_>) -> Option<Share> {
    const EXPECTED: &str = "a share of clients, such as `10%` or `0.5%`";
    let text = scalar::text(node, EXPECTED, report)?;
    let wrong = |what: String| Finding::error(node, what).expected(EXPECTED);
    let finding = match quantity::percent(text) {
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
