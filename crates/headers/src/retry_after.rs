//! When a rejected client may retry.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use http::HeaderMap;
use http::header::RETRY_AFTER;
use tidegate_core::TimeSpan;

/// `Retry-After` for a wait: whole seconds, rounded up, plus a jitter of up to a tenth. The jitter of one client is always
/// the same; it prevents rejected clients from all returning at the same instant.
pub fn retry_after_seconds(wait: TimeSpan, client: &[u8]) -> u64 {
    let seconds = wait.as_secs_ceil();
    if seconds < 10 {
        return seconds;
    }
    seconds + FixedState::default().hash_one(client) % (seconds / 10 + 1)
}

/// Sets `Retry-After`.
pub fn write_retry_after(headers: &mut HeaderMap, seconds: u64) {
    headers.insert(RETRY_AFTER, seconds.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_jitter_is_never_early_at_most_a_tenth_and_stable() {
        let mut seen = std::collections::BTreeSet::new();
        let wait = |client: u32| retry_after_seconds(TimeSpan::from_millis(99_001), &client.to_be_bytes());
        for client in 0..1_000 {
            let seconds = wait(client);
            assert!((100..=110).contains(&seconds));
            assert_eq!(seconds, wait(client));
            seen.insert(seconds);
        }
        assert_eq!(seen.len(), 11, "clients are spread over the whole range");
        assert_eq!(retry_after_seconds(TimeSpan::from_secs(9), b"a"), 9, "no jitter below 10 s");
        assert_eq!(retry_after_seconds(TimeSpan::from_micros(1), b"a"), 1);
    }
}
