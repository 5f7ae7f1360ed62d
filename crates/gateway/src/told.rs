//! What every response says of its limits.

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use smallvec::SmallVec;
use tidegate_core::{Decision, Outcome, Role, RuleId};
use tidegate_policy::{HeaderStyle, Judged, Matched};

use crate::refusal::reset;

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Headers to be set on a response.
pub(crate) type Told = SmallVec<[(HeaderName, HeaderValue); 6]>;

/// Tells of a decision in the chosen styles: the single-valued ones of the tightest limit, the structured one of
/// every limit that can refuse. What an upstream says of limits of its own is replaced.
pub(crate) fn tell(
    (told, said): (&mut Told, &mut Said),
    styles: &[HeaderStyle],
    decision: &Decision,
    tightest: usize,
    matched: &Matched<'_>,
) {
    let Some(outcome) = decision.outcomes.get(tightest) else { return };
    for style in styles {
        match style {
            HeaderStyle::XRateLimit => {
                told.push((X_LIMIT, said.limit(outcome.limit)));
                told.push((X_REMAINING, remaining(outcome)));
                told.push((X_RESET, said.reset(reset(decision.at, outcome))));
            }
            HeaderStyle::RateLimitEpoch | HeaderStyle::RateLimitDelta => {
                told.push((LIMIT, said.limit(outcome.limit)));
                told.push((REMAINING, remaining(outcome)));
                let seconds = if *style == HeaderStyle::RateLimitEpoch {
                    reset(decision.at, outcome)
                } else {
                    outcome.reset_after.as_secs_ceil()
                };
                told.push((RESET, said.reset(seconds)));
            }
            HeaderStyle::RateLimit => {
                // What only watches is not the client's business.
                let binding = || matched.judged(decision).filter(|judged| judged.check.role == Role::Binding);
                told.push((POLICY, said.policy(binding)));
                let mut value = Value::default();
                for Judged { rule, outcome, .. } in binding() {
                    let reset_after = outcome.reset_after.as_secs_ceil();
                    value.member(&rule.name, (";r=", outcome.remaining), (";t=", reset_after));
                }
                told.push((RATELIMIT, value.into()));
            }
        }
    }
}

fn remaining(outcome: &Outcome) -> HeaderValue {
    // As every refusal has it.
    if outcome.remaining == 0 { HeaderValue::from_static("0") } else { outcome.remaining.into() }
}

/// When a refused client may come back, for those who look for it among the `X-RateLimit` headers.
pub(crate) fn tell_when(told: &mut Told, styles: &[HeaderStyle], seconds: u64) {
    if styles.contains(&HeaderStyle::XRateLimit) {
        told.push((X_RETRY_AFTER, seconds.into()));
    }
}

/// Values that a core has written before. Limits and windows are few, and what is whole again is so at few seconds.
#[derive(Debug, Default)]
pub(crate) struct Said {
    limits: Kept<u64>,
    resets: Kept<u64>,
    policies: Kept<Quotas>,
}

/// What a policy is told as: each rule with its limit and the seconds of its window. A rule is its name.
type Quotas = SmallVec<[(RuleId, u64, u64); 2]>;

impl Said {
    fn limit(&mut self, limit: u64) -> HeaderValue {
        self.limits.get(limit, limit, || limit.into())
    }

    fn reset(&mut self, second: u64) -> HeaderValue {
        self.resets.get(second, second, || second.into())
    }

    fn policy<'j, J: Iterator<Item = Judged<'j>>>(&mut self, binding: impl Fn() -> J) -> HeaderValue {
        let window = |judged: &Judged<'_>| judged.rule.window.as_secs_ceil();
        let quotas = binding().map(|judged| (judged.rule.id, judged.outcome.limit, window(&judged)));
        let quotas: Quotas = quotas.collect();
        let place = quotas.iter().fold(0, |place, (rule, ..)| place ^ rule.as_u64());
        self.policies.get(place, quotas, || {
            let mut value = Value::default();
            for judged in binding() {
                let (limit, window) = (judged.outcome.limit, window(&judged));
                value.member(&judged.rule.name, (";q=", limit), (";w=", window));
            }
            value.into()
        })
    }
}

/// So many values of a kind.
const KEPT: usize = 16;

/// The last values by what they say, each at its place. One is kept when it is asked for again, before anything else at
/// its place: what is told once is not worth it.
#[derive(Debug)]
struct Kept<K>([Option<(K, Option<HeaderValue>)>; KEPT]);

impl<K> Default for Kept<K> {
    fn default() -> Self {
        Self([const { None }; KEPT])
    }
}

impl<K: PartialEq> Kept<K> {
    /// The value for `key`, whose place is `place`.
    fn get(&mut self, place: u64, key: K, write: impl FnOnce() -> HeaderValue) -> HeaderValue {
        let place = usize::try_from(place % KEPT as u64).unwrap_or_default();
        let Some(kept) = self.0.get_mut(place) else { return write() };
        match kept {
            Some((said, value)) if *said == key => value.get_or_insert_with(write).clone(),
            _ => {
                *kept = Some((key, None));
                write()
            }
        }
    }
}

/// A structured list that is being written.
struct Value(Vec<u8>);

impl Default for Value {
    fn default() -> Self {
        // Room for what most policies tell.
        Self(Vec::with_capacity(64))
    }
}

impl Value {
    /// A member: a name and two parameters.
    fn member(&mut self, name: &str, first: (&str, u64), second: (&str, u64)) {
        if !self.0.is_empty() {
            self.0.extend_from_slice(b", ");
        }
        self.quoted(name);
        for (parameter, value) in [first, second] {
            self.0.extend_from_slice(parameter.as_bytes());
            self.0.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        }
    }

    /// A string of a structured field: visible ASCII, the rest left out.
    fn quoted(&mut self, text: &str) {
        self.0.push(b'"');
        for byte in text.bytes().filter(|byte| matches!(byte, b' '..=b'~')) {
            if matches!(byte, b'"' | b'\\') {
                self.0.push(b'\\');
            }
            self.0.push(byte);
        }
        self.0.push(b'"');
    }
}

impl From<Value> for HeaderValue {
    fn from(value: Value) -> Self {
        // Digits and visible ASCII are always a value.
        Self::from_maybe_shared(Bytes::from(value.0)).unwrap_or(Self::from_static(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_said_again_and_nothing_else() {
        let mut kept = Kept::default();
        let mut value = |key: u64| kept.get(key, key, || key.into());
        for key in [1, 1, 1, 17, 17, 1, 2, 17, 2, 2, 17] {
            assert_eq!(value(key), key.to_string());
        }
    }

    #[test]
    fn names_are_quoted() {
        let mut value = Value::default();
        value.member("a \"b\" \\ ü", (";q=", 1), (";w=", 2));
        value.member("c", (";q=", 3), (";w=", 4));
        assert_eq!(HeaderValue::from(value), r#""a \"b\" \\ ";q=1;w=2, "c";q=3;w=4"#);
    }
}
