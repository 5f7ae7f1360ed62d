//! What every response says of its limits.

use bytes::{BufMut, BytesMut};
use http::header::{HeaderName, HeaderValue};
use smallvec::SmallVec;
use tidegate_core::{Decision, Role};
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
    told: &mut Told,
    styles: &[HeaderStyle],
    decision: &Decision,
    tightest: usize,
    matched: &Matched<'_>,
) {
    let Some(outcome) = decision.outcomes.get(tightest) else { return };
    let mut values = Values::default();
    for style in styles {
        match style {
            HeaderStyle::XRateLimit => {
                told.push((X_LIMIT, values.number(outcome.limit)));
                told.push((X_REMAINING, values.number(outcome.remaining)));
                told.push((X_RESET, values.number(reset(decision.at, outcome))));
            }
            HeaderStyle::RateLimitEpoch | HeaderStyle::RateLimitDelta => {
                told.push((LIMIT, values.number(outcome.limit)));
                told.push((REMAINING, values.number(outcome.remaining)));
                let seconds = if *style == HeaderStyle::RateLimitEpoch {
                    reset(decision.at, outcome)
                } else {
                    outcome.reset_after.as_secs_ceil()
                };
                told.push((RESET, values.number(seconds)));
            }
            HeaderStyle::RateLimit => {
                // What only watches is not the client's business.
                let binding = || matched.judged(decision).filter(|judged| judged.check.role == Role::Binding);
                for (number, Judged { rule, outcome, .. }) in binding().enumerate() {
                    let window = rule.window.as_secs_ceil();
                    values.member(number, &rule.name, (";q=", outcome.limit), (";w=", window));
                }
                told.push((POLICY, values.take()));
                for (number, Judged { rule, outcome, .. }) in binding().enumerate() {
                    let reset_after = outcome.reset_after.as_secs_ceil();
                    values.member(number, &rule.name, (";r=", outcome.remaining), (";t=", reset_after));
                }
                told.push((RATELIMIT, values.take()));
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

/// Values of headers, written one after another into the same memory.
struct Values(BytesMut);

impl Default for Values {
    fn default() -> Self {
        // Room for what most policies tell.
        Self(BytesMut::with_capacity(192))
    }
}

impl Values {
    fn number(&mut self, number: u64) -> HeaderValue {
        self.put_number(number);
        self.take()
    }

    fn put_number(&mut self, number: u64) {
        self.0.put_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// A member of a structured list: a name and two parameters.
    fn member(&mut self, number: usize, name: &str, first: (&str, u64), second: (&str, u64)) {
        if number > 0 {
            self.0.put_slice(b", ");
        }
        self.quoted(name);
        for (parameter, value) in [first, second] {
            self.0.put_slice(parameter.as_bytes());
            self.put_number(value);
        }
    }

    /// A string of a structured field: visible ASCII, the rest left out.
    fn quoted(&mut self, text: &str) {
        self.0.put_u8(b'"');
        if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
            self.0.put_slice(text.as_bytes());
        } else {
            for byte in text.bytes().filter(|byte| matches!(byte, b' '..=b'~')) {
                if matches!(byte, b'"' | b'\\') {
                    self.0.put_u8(b'\\');
                }
                self.0.put_u8(byte);
            }
        }
        self.0.put_u8(b'"');
    }

    /// What was written since the last one.
    fn take(&mut self) -> HeaderValue {
        // Digits and visible ASCII are always a value.
        HeaderValue::from_maybe_shared(self.0.split().freeze()).unwrap_or(HeaderValue::from_static(""))
    }
}
