//! What every response says of its limit.

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use tidegate_core::{Outcome, Timestamp};

use super::demo::Policy;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The limit, what is left, and when it is whole again: `X-RateLimit-*` and the `RateLimit` fields.
pub(crate) fn limit(headers: &mut HeaderMap, policy: &Policy, outcome: &Outcome, at: Timestamp) {
    headers.insert(LIMIT, outcome.limit.into());
    headers.insert(REMAINING, outcome.remaining.into());
    headers.insert(RESET, (at + outcome.reset_after).as_secs_ceil().into());
    let (name, window) = (policy.name, policy.window.as_secs_ceil());
    insert_text(headers, POLICY, &format!("\"{name}\";q={};w={window}", outcome.limit));
    let reset = outcome.reset_after.as_secs_ceil();
    insert_text(headers, RATELIMIT, &format!("\"{name}\";r={};t={reset}", outcome.remaining));
}

/// When to come back, in whole seconds.
pub(crate) fn retry_after(headers: &mut HeaderMap, seconds: u64) {
    headers.insert(RETRY_AFTER, seconds.into());
    headers.insert(X_RETRY_AFTER, seconds.into());
}

/// Only rule names an operator chose and numbers are written, all of which a header may hold.
fn insert_text(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}
