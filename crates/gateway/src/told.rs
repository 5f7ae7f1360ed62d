//! What every response says of its limits.

use std::fmt::Write;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};
use smallvec::SmallVec;
use tidegate_core::{Decision, Outcome, Role};
use tidegate_policy::{HeaderStyle, Matched, Rule};

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
    told: &mut Told,
    styles: &[HeaderStyle],
    decision: &Decision,
    tightest: usize,
    matched: &Matched<'_>,
) {
    let Some(outcome) = decision.outcomes.get(tightest) else { return };
    for style in styles {
        match style {
            HeaderStyle::XRateLimit => {
                told.push((X_LIMIT, outcome.limit.into()));
                told.push((X_REMAINING, outcome.remaining.into()));
                told.push((X_RESET, reset(decision.at, outcome).into()));
            }
            HeaderStyle::RateLimitEpoch | HeaderStyle::RateLimitDelta => {
                told.push((LIMIT, outcome.limit.into()));
                told.push((REMAINING, outcome.remaining.into()));
                let seconds = if *style == HeaderStyle::RateLimitEpoch {
                    reset(decision.at, outcome)
                } else {
                    outcome.reset_after.as_secs_ceil()
                };
                told.push((RESET, seconds.into()));
            }
            HeaderStyle::RateLimit => {
                // What only watches is not the client's business.
                let binding = matched.judged(decision).filter(|judged| judged.check.role == Role::Binding);
                structured(told, binding.map(|judged| (judged.rule, judged.outcome)));
            }
        }
    }
}

/// When a refused client may come back, for those who look for it among the `X-RateLimit` headers.
pub(crate) fn tell_when(told: &mut Told, styles: &[HeaderStyle], seconds: u64) {
    if styles.contains(&HeaderStyle::XRateLimit) {
        told.push((X_RETRY_AFTER, seconds.into()));
    }
}

fn structured<'r, 'o>(told: &mut Told, outcomes: impl Iterator<Item = (&'r Rule, &'o Outcome)>) {
    let (mut policy, mut state) = (BytesMut::with_capacity(64), BytesMut::with_capacity(64));
    for (rule, outcome) in outcomes {
        if !policy.is_empty() {
            policy.put_slice(b", ");
            state.put_slice(b", ");
        }
        let window = rule.window.as_secs_ceil();
        quoted(&mut policy, &rule.name);
        quoted(&mut state, &rule.name);
        // Writing to memory does not fail.
        let _ = write!(policy, ";q={};w={window}", outcome.limit);
        let _ = write!(state, ";r={};t={}", outcome.remaining, outcome.reset_after.as_secs_ceil());
    }
    push(told, POLICY, policy.freeze());
    push(told, RATELIMIT, state.freeze());
}

/// A string of a structured field: visible ASCII, the rest left out.
fn quoted(to: &mut BytesMut, text: &str) {
    to.put_u8(b'"');
    for byte in text.bytes().filter(|byte| matches!(byte, b' '..=b'~')) {
        if matches!(byte, b'"' | b'\\') {
            to.put_u8(b'\\');
        }
        to.put_u8(byte);
    }
    to.put_u8(b'"');
}

fn push(told: &mut Told, name: HeaderName, value: Bytes) {
    if let Ok(value) = HeaderValue::from_maybe_shared(value) {
        told.push((name, value));
    }
}
