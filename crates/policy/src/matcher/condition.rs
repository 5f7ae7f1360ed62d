//! The conditions of a rule other than its path, and the cost of a request.

use std::borrow::Cow;

use http::header::{CONTENT_LENGTH, HeaderName};
use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;
use tidegate_core::Cost;

use crate::endpoints::equivalent_method;
use crate::expression::Expression;
use crate::facts::Facts;
use crate::host::normalize_host;
use crate::identity::Identity;
use crate::path::Readings;
use crate::plan::{CustomRule, RuleCost, RuleMatch};

/// The most hosts of a proxy for which a condition is evaluated.
const MOST_HOSTS: usize = 4;

/// The result of evaluating a rule's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConditionResult {
    False,
    True,
    /// The expression could not be evaluated. The rule applies, which is the stricter choice.
    Failed,
}

/// Evaluates the conditions of a rule whose path matches, cheap ones first. `readings` are the alternative readings of
/// the path.
pub(super) fn evaluate(
    matches: &RuleMatch,
    identity: &Identity<'_>,
    tier: Option<&str>,
    readings: &Readings,
) -> ConditionResult {
    let facts = identity.facts();
    if !has_method(matches, facts.method) {
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
    let expression = &when.expression;
    let evaluate_at = |reading: Facts<'_>| match expression.evaluate_at(reading, identity, tier) {
        Ok(true) => ConditionResult::True,
        Ok(false) => ConditionResult::False,
        Err(_) => ConditionResult::Failed,
    };
    match evaluate_at(*facts) {
        ConditionResult::False => any_other(facts, expression, readings, evaluate_at),
        result => result,
    }
}

/// Whether a rule applies to requests with this method, as far as that alone decides it.
pub(super) fn has_method(matches: &RuleMatch, method: &str) -> bool {
    let is_method = |known: &String| known == method || Some(&**known) == equivalent_method(method);
    matches.methods.is_empty() || matches.methods.iter().any(is_method)
}

/// The result of a condition that is false for the usual reading of a request: it is true if it is true for any other reading
/// of the method, the host and the path.
fn any_other(
    usual: &Facts<'_>,
    expression: &Expression,
    readings: &Readings,
    evaluate_at: impl Fn(Facts<'_>) -> ConditionResult,
) -> ConditionResult {
    let other_method = equivalent_method(usual.method).filter(|_| expression.reads_method());
    let other_hosts: SmallVec<[_; 2]> =
        if expression.reads_host() { forwarded_hosts(usual.headers).collect() } else { SmallVec::new() };
    let reads_path = !readings.is_single() && expression.reads_path();
    for method in [Some(usual.method), other_method].into_iter().flatten() {
        for host in std::iter::once(usual.host).chain(other_hosts.iter().map(|host| Some(&**host))) {
            let paths = readings.others(usual.path).filter(|_| reads_path);
            for path in std::iter::once(usual.path).chain(paths) {
                if (method, host, path) == (usual.method, usual.host, usual.path) {
                    continue;
                }
                match evaluate_at(Facts { method, host, path, ..*usual }) {
                    ConditionResult::False => {}
                    result => return result,
                }
            }
        }
    }
    ConditionResult::False
}

/// The hosts that a trusted proxy reports, which many services prefer to `Host`. Proxies often forward what the client sent.
fn forwarded_hosts(headers: &HeaderMap) -> impl Iterator<Item = Cow<'_, str>> {
    let lines = headers.get_all("x-forwarded-host").iter().filter_map(|line| line.to_str().ok());
    let hosts = lines.flat_map(|line| line.split(',')).map(str::trim);
    hosts.filter_map(normalize_host).take(MOST_HOSTS)
}

/// The cost of a request for `custom`. An invalid cost header costs the whole limit. `None` if the cost depends on a body
/// of unknown length.
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

/// Parses a cost. 0 counts as 1. A number that does not fit saturates, which exceeds every limit.
fn units(text: &[u8]) -> Option<Cost> {
    digits(text).map(|units| Cost::new(units.max(1)))
}

/// Parses digits to a number, saturating.
fn digits(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0_u64, |sum, digit| {
        sum.saturating_mul(10).saturating_add(u64::from(digit.saturating_sub(b'0')))
    }))
}

/// The cost of a body of `bytes` bytes: one per started unit, at least one.
pub(super) fn body_units(bytes: u64, unit: u64) -> u64 {
    bytes.div_ceil(unit.max(1)).max(1)
}

/// The cost that a response header reports; `None` if it is missing, repeated or invalid.
pub(super) fn reported_cost(headers: &HeaderMap, name: &HeaderName) -> Option<Cost> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    // No limit is larger than this. A larger value is an error, and charging it would lock the client out for years.
    digits(value.as_bytes()).filter(|units| *units < 1 << 53).map(Cost::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_that_is_not_a_whole_number_is_none() {
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
