//! What a rule asks of a request beyond its path, and what the request costs it.

use http::header::{CONTENT_LENGTH, HeaderName};
use http::{HeaderMap, HeaderValue};
use tidegate_core::Cost;

use crate::endpoints::equivalent_method;
use crate::identity::Identity;
use crate::path::Readings;
use crate::plan::{CustomRule, RuleCost, RuleMatch};

/// Whether a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConditionResult {
    False,
    True,
    /// The expression could not be evaluated. The rule applies: the stricter answer.
    Failed,
}

/// Whether a rule whose path fits applies to a request. What is cheap is asked first. `readings` is what upstream
/// servers may take the path for.
pub(super) fn evaluate(
    matches: &RuleMatch,
    identity: &Identity<'_>,
    tier: Option<&str>,
    readings: &Readings,
) -> ConditionResult {
    let facts = identity.facts();
    let asked =
        |method: &String| method == facts.method || Some(&**method) == equivalent_method(facts.method);
    if !matches.methods.is_empty() && !matches.methods.iter().any(asked) {
        return ConditionResult::False;
    }
    for header in &matches.headers {
        let fits = |value: &HeaderValue| {
            header.values.is_empty() || header.values.iter().any(|known| known.as_bytes() == value.as_bytes())
        };
        if !facts.headers.get_all(&header.name).iter().any(fits) {
            return ConditionResult::False;
        }
    }
    let Some(when) = &matches.when else { return ConditionResult::True };
    let evaluate_at = |path: &str| match when.expression.evaluate_at(path, identity, tier) {
        Ok(true) => ConditionResult::True,
        Ok(false) => ConditionResult::False,
        Err(_) => ConditionResult::Failed,
    };
    let result = evaluate_at(facts.path);
    if result != ConditionResult::False || readings.is_single() || !when.expression.reads_path() {
        return result;
    }
    // A condition on the path holds if it holds for what an upstream server may take the path for.
    let mut others = readings.others(facts.path).map(evaluate_at);
    others.find(|result| *result != ConditionResult::False).unwrap_or(ConditionResult::False)
}

/// What a request takes of the limit of `custom`. Whatever cannot be read takes all of it. `None`: only its body will tell.
pub(super) fn cost(custom: &CustomRule, headers: &HeaderMap) -> Option<Cost> {
    let name = match &custom.cost {
        RuleCost::Constant(cost) => return Some(*cost),
        RuleCost::Header(name) => name,
        RuleCost::Body(unit) => {
            let length = digits(headers.get(CONTENT_LENGTH)?.as_bytes())?;
            return Some(Cost::new(body_units(length, *unit)));
        }
    };
    let mut values = headers.get_all(name).iter();
    let units = match (values.next(), values.next()) {
        (None, _) => Some(Cost::ONE),
        (Some(value), None) => units(value.as_bytes()),
        (Some(_), Some(_)) => None,
    };
    Some(units.unwrap_or_else(|| Cost::new(custom.rule.limit.capacity())))
}

/// A whole number of at least 1: what is written as 0 is not free. One too large for its type is too large for any limit.
fn units(text: &[u8]) -> Option<Cost> {
    digits(text).map(|units| Cost::new(units.max(1)))
}

/// A whole number, however large.
fn digits(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0_u64, |sum, digit| {
        sum.saturating_mul(10).saturating_add(u64::from(digit.saturating_sub(b'0')))
    }))
}

/// The units of a body of so many bytes: each that has begun, at least one.
pub(super) fn body_units(bytes: u64, unit: u64) -> u64 {
    bytes.div_ceil(unit.max(1)).max(1)
}

/// What a response says the request has cost; `None` if it says nothing that can be believed.
pub(super) fn reported_cost(headers: &HeaderMap, name: &HeaderName) -> Option<Cost> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    // Beyond this no limit counts; it is a mistake, and nobody is to be in debt for a lifetime by one.
    digits(value.as_bytes()).filter(|units| *units < 1 << 53).map(Cost::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_a_whole_number_or_none() {
        let read = |text: &str| units(text.as_bytes()).map(Cost::get);
        assert_eq!(read("7"), Some(7));
        assert_eq!(read(" 007 "), Some(7));
        assert_eq!(read("0"), Some(1));
        assert_eq!(read("99999999999999999999"), Some(u64::MAX));
        for garbage in ["", "-1", "+1", "1.5", "1e3", "0x10", "1,000", "seven"] {
            assert_eq!(read(garbage), None, "{garbage}");
        }
    }
}
