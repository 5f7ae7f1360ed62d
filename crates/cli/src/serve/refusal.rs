//! What a refused client reads.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;
use tidegate_core::{Outcome, Span, Timestamp, Verdict};

use super::demo::Policy;

/// The body of a 429; what it says is what the headers say.
#[derive(Debug, Serialize)]
pub(crate) struct Refusal {
    error: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after: Option<u64>,
    limit: u64,
    remaining: u64,
    reset: u64,
    window: String,
    rule: &'static str,
}

impl Refusal {
    pub(crate) fn new(policy: &Policy, outcome: &Outcome, at: Timestamp, client: &[u8]) -> Self {
        let retry_after = match outcome.verdict {
            Verdict::NotUntil { retry_after } => Some(spread(retry_after.as_secs_ceil(), client)),
            _ => None,
        };
        let message = match retry_after {
            Some(1) => "Too many requests. Please retry after 1 second.".to_owned(),
            Some(seconds) => format!("Too many requests. Please retry after {seconds} seconds."),
            None => "This request costs more than its limit ever allows. Retrying does not help.".to_owned(),
        };
        Self {
            error: "rate_limit_exceeded",
            message,
            retry_after,
            limit: outcome.limit,
            remaining: outcome.remaining,
            reset: (at + outcome.reset_after).as_secs_ceil(),
            window: window_text(policy.window),
            rule: policy.name,
        }
    }
}

/// Up to a tenth later, always the same for one client, so that not all come back at one instant.
fn spread(seconds: u64, client: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    client.hash(&mut hasher);
    seconds + hasher.finish() % (seconds / 10 + 1)
}

/// A window as an operator writes it: `60s` is `1m`.
pub(crate) fn window_text(window: Span) -> String {
    const UNITS: [(u64, &str); 5] =
        [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
    let micros = window.as_micros();
    let whole = UNITS.iter().find(|(unit, _)| micros.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{micros}us"), |(unit, name)| format!("{}{name}", micros / unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::demo;

    fn outcome(verdict: Verdict) -> Outcome {
        Outcome { verdict, limit: 100, remaining: 0, reset_after: Span::from_secs(60) }
    }

    #[test]
    fn a_refusal_says_when_to_come_back() {
        let policy = demo::policy().unwrap();
        let verdict = Verdict::NotUntil { retry_after: Span::from_micros(4_000_001) };
        let refusal = Refusal::new(&policy, &outcome(verdict), Timestamp::from_secs(1_705_334_340), b"a");
        assert_eq!(
            serde_json::to_string(&refusal).unwrap(),
            r#"{"error":"rate_limit_exceeded","message":"Too many requests. Please retry after 5 seconds.","retry_after":5,"limit":100,"remaining":0,"reset":1705334400,"window":"1m","rule":"demo"}"#
        );
    }

    #[test]
    fn what_never_fits_is_not_told_to_come_back() {
        let policy = demo::policy().unwrap();
        let refusal = Refusal::new(&policy, &outcome(Verdict::Never), Timestamp::from_secs(1), b"a");
        let body = serde_json::to_value(&refusal).unwrap();
        assert_eq!(body.get("retry_after"), None);
        assert!(body["message"].as_str().unwrap().contains("Retrying does not help"), "{body}");
    }

    #[test]
    fn the_spread_is_never_early_at_most_a_tenth_and_the_same_each_time() {
        let mut seen = std::collections::BTreeSet::new();
        for client in 0_u32..1_000 {
            let seconds = spread(100, &client.to_be_bytes());
            assert!((100..=110).contains(&seconds));
            assert_eq!(seconds, spread(100, &client.to_be_bytes()));
            seen.insert(seconds);
        }
        assert_eq!(seen.len(), 11, "clients are spread over all of it");
        assert_eq!(spread(9, b"a"), 9, "a tenth of little is nothing");
    }

    #[test]
    fn windows_read_as_an_operator_writes_them() {
        let text = |micros| window_text(Span::from_micros(micros));
        assert_eq!(text(60_000_000), "1m");
        assert_eq!(text(90_000_000), "90s");
        assert_eq!(text(86_400_000_000), "1d");
        assert_eq!(text(1_500), "1500us");
    }
}
