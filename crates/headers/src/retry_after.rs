//! When a refused client may retry.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use tidegate_core::TimeSpan;

use crate::names;
use crate::style::HeaderStyle;

/// The longest jitter, in seconds.
const MAX_JITTER: u64 = 30;

/// When a refused client may retry: the exact time, and `Retry-After` in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter {
    /// How long until nothing refuses the request.
    pub wait: TimeSpan,
    /// `Retry-After`: whole seconds, rounded up, plus a jitter of up to a tenth, at most 30 s. The jitter of one client is always
    /// the same; it prevents refused clients from all returning at the same instant.
    pub seconds: u64,
}

impl RetryAfter {
    /// After `wait`, with the jitter of `client`.
    pub fn new(wait: TimeSpan, client: &[u8]) -> Self {
        let seconds = wait.as_secs_ceil();
        if seconds < 10 {
            return Self { wait, seconds };
        }
        let longest = (seconds / 10).min(MAX_JITTER);
        let jitter = FixedState::default().hash_one(client) % (longest + 1);
        Self { wait, seconds: seconds.saturating_add(jitter) }
    }
}

/// Where headers are written.
pub trait HeaderTarget {
    /// Sets a header.
    fn set(&mut self, name: HeaderName, value: HeaderValue);
}

impl HeaderTarget for HeaderMap {
    fn set(&mut self, name: HeaderName, value: HeaderValue) {
        self.insert(name, value);
    }
}

/// Writes when a refused client may retry: `Retry-After`, and for clients that read only the `X-RateLimit` headers, if `styles`
/// has them, the header of that style. Refusals that no limit causes have no styles.
pub fn write_retry_after(headers: &mut impl HeaderTarget, seconds: u64, styles: &[HeaderStyle]) {
    let value = HeaderValue::from(seconds);
    if styles.iter().any(|style| matches!(style, HeaderStyle::XRateLimit | HeaderStyle::XRateLimitMs)) {
        headers.set(names::X_RETRY_AFTER, value.clone());
    }
    headers.set(RETRY_AFTER, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_jitter_is_never_early_at_most_a_tenth_and_stable() {
        let mut seen = std::collections::BTreeSet::new();
        let wait = |client: u32| RetryAfter::new(TimeSpan::from_millis(99_001), &client.to_be_bytes());
        for client in 0..1_000 {
            let seconds = wait(client).seconds;
            assert!((100..=110).contains(&seconds));
            assert_eq!(seconds, wait(client).seconds);
            seen.insert(seconds);
        }
        assert_eq!(seen.len(), 11, "clients are spread over the whole range");
        assert_eq!(RetryAfter::new(TimeSpan::from_secs(9), b"a").seconds, 9, "no jitter below 10 s");
        assert_eq!(RetryAfter::new(TimeSpan::from_micros(1), b"a").seconds, 1);
    }

    #[test]
    fn retry_after_jitter_of_a_long_wait_is_at_most_30_seconds() {
        let seconds =
            |client: u32| RetryAfter::new(TimeSpan::from_secs(86_400), &client.to_be_bytes()).seconds;
        let latest = (0..1_000).map(seconds).max();
        assert_eq!(latest, Some(86_430));
        assert_eq!(RetryAfter::new(TimeSpan::MAX, b"a").wait, TimeSpan::MAX);
    }

    #[test]
    fn write_retry_after_writes_the_x_ratelimit_header_for_its_style_only() {
        let written = |style| {
            let mut headers = HeaderMap::new();
            write_retry_after(&mut headers, 30, &[style]);
            assert_eq!(headers[RETRY_AFTER], "30");
            headers.len()
        };
        assert_eq!(HeaderStyle::ALL.map(written), [2, 2, 1, 1, 1]);
    }
}
