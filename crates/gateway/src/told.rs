//! What every response says of its limits.

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tidegate_core::{LimitReport, LimitUnit, RuleId, Span, Timestamp};
use tidegate_policy::HeaderStyle;

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

/// The largest integer of a structured field (RFC 9651).
const LARGEST: u64 = 999_999_999_999_999;

/// The second in which the limit is whole again, or admits the request that it rejects now.
pub(crate) fn reset(at: Timestamp, report: &LimitReport<'_>) -> u64 {
    (at + report.announced_reset()).as_secs_ceil()
}

/// `t` in seconds: never longer than the window.
fn reset_seconds(report: &LimitReport<'_>) -> u64 {
    let longest = report.window.map_or(LARGEST, Span::as_secs_ceil);
    report.announced_reset().as_secs_ceil().min(longest)
}

/// Writes the chosen styles: the single-valued ones report `single`, the structured one `all` limits that can reject.
pub(crate) fn tell<'r, I: Iterator<Item = LimitReport<'r>>>(
    (told, said): (&mut Told, &mut Said),
    styles: &[HeaderStyle],
    at: Timestamp,
    single: &LimitReport<'_>,
    all: impl Fn() -> I,
) {
    for style in styles {
        match style {
            HeaderStyle::XRateLimit => {
                told.push((X_LIMIT, said.limit(single.quota)));
                told.push((X_REMAINING, remaining(single)));
                told.push((X_RESET, said.reset(reset(at, single))));
            }
            HeaderStyle::RateLimitEpoch | HeaderStyle::RateLimitDelta => {
                told.push((LIMIT, said.limit(single.quota)));
                told.push((REMAINING, remaining(single)));
                let seconds = if *style == HeaderStyle::RateLimitEpoch {
                    reset(at, single)
                } else {
                    single.announced_reset().as_secs_ceil()
                };
                told.push((RESET, said.reset(seconds)));
            }
            HeaderStyle::RateLimit => {
                told.push((POLICY, said.policy(&all)));
                let mut value = Value::default();
                for report in all() {
                    value.member(report.name);
                    value.integer(";r=", report.remaining);
                    value.integer(";t=", reset_seconds(&report));
                }
                told.push((RATELIMIT, value.into()));
            }
        }
    }
}

fn remaining(report: &LimitReport<'_>) -> HeaderValue {
    // As nearly every rejection has it.
    if report.remaining == 0 { HeaderValue::from_static("0") } else { report.remaining.into() }
}

/// Whether an upstream rejects a request by a limit of its own and says so: then its headers stand, and ours would
/// contradict them.
pub(crate) fn is_limited_by_upstream(status: StatusCode, headers: &HeaderMap) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        && headers.keys().any(|name| {
            let name = name.as_str();
            name.starts_with("ratelimit") || name.starts_with("x-ratelimit") || name == RETRY_AFTER.as_str()
        })
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

/// What a policy is announced as: each rule with its limit, the seconds of its window and its unit. A rule is its name.
type Quotas = SmallVec<[(RuleId, u64, Option<Span>, LimitUnit); 2]>;

impl Said {
    fn limit(&mut self, limit: u64) -> HeaderValue {
        self.limits.get(limit, limit, || limit.into())
    }

    fn reset(&mut self, second: u64) -> HeaderValue {
        self.resets.get(second, second, || second.into())
    }

    fn policy<'r, I: Iterator<Item = LimitReport<'r>>>(&mut self, all: &impl Fn() -> I) -> HeaderValue {
        let quotas: Quotas = all()
            .map(|LimitReport { name, quota, window, unit, .. }| (RuleId::named(name), quota, window, unit))
            .collect();
        let place = quotas.iter().fold(0, |place, (rule, ..)| place ^ rule.as_u64());
        self.policies.get(place, quotas, || {
            let mut value = Value::default();
            for LimitReport { name, quota, window, unit, .. } in all() {
                value.member(name);
                value.integer(";q=", quota);
                if unit != LimitUnit::Requests {
                    value.string(";qu=", &unit.to_string());
                }
                if let Some(window) = window {
                    value.integer(";w=", window.as_secs_ceil());
                }
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
        Self(Vec::with_capacity(96))
    }
}

impl Value {
    /// Begins a member; its parameters follow.
    fn member(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.extend_from_slice(b", ");
        }
        self.quoted(name);
    }

    fn integer(&mut self, parameter: &str, value: u64) {
        self.0.extend_from_slice(parameter.as_bytes());
        self.0.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    fn string(&mut self, parameter: &str, value: &str) {
        self.0.extend_from_slice(parameter.as_bytes());
        self.quoted(value);
    }

    /// A string of a structured field: visible ASCII, the rest left out.
    fn quoted(&mut self, text: &str) {
        self.0.push(b'"');
        // Every byte is looked at, without a branch: several at once, and nearly every name has no such byte.
        let is_special = |byte: u8| {
            u8::from(!matches!(byte, b' '..=b'~')) | u8::from(byte == b'"') | u8::from(byte == b'\\')
        };
        if text.bytes().fold(0, |any, byte| any | is_special(byte)) == 0 {
            self.0.extend_from_slice(text.as_bytes());
            self.0.push(b'"');
            return;
        }
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
        value.member("a \"b\" \\ ü");
        value.integer(";q=", 1);
        value.string(";qu=", "content-bytes");
        value.member("c");
        value.integer(";q=", 3);
        assert_eq!(HeaderValue::from(value), r#""a \"b\" \\ ";q=1;qu="content-bytes", "c";q=3"#);
    }
}
