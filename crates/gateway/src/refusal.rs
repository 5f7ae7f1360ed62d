//! What a 429 says: header and body agree.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;
use serde_json::json;
use tidegate_core::{Decision, Outcome, Timestamp, Verdict};
use tidegate_policy::{ErrorBody, Rule, span_text};

/// What is told about a request that a limit refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    /// Seconds after which it would pass; `None` if it never would.
    pub(crate) retry_after: Option<u64>,
    limit: u64,
    remaining: u64,
    reset: u64,
    window: String,
    rule: String,
    /// Names of all rules that refused it.
    violated: Vec<String>,
}

impl Refusal {
    /// What `decision` says to `client`. `refused` is the rule that is reported and its outcome.
    pub(crate) fn new(
        decision: &Decision,
        refused: (&Rule, &Outcome),
        violated: Vec<String>,
        client: &[u8],
    ) -> Self {
        let (rule, outcome) = refused;
        let retry_after = match decision.verdict {
            Verdict::NotUntil { retry_after } => Some(spread(retry_after.as_secs_ceil(), client)),
            _ => None,
        };
        let message = match retry_after {
            Some(1) => "Too many requests. Please retry after 1 second.".to_owned(),
            Some(seconds) => format!("Too many requests. Please retry after {seconds} seconds."),
            None => "This request costs more than its limit ever allows. Retrying does not help.".to_owned(),
        };
        Self {
            message,
            retry_after,
            limit: outcome.limit,
            remaining: outcome.remaining,
            reset: reset(decision.at, outcome),
            window: span_text(rule.window),
            rule: rule.name.clone(),
            violated,
        }
    }

    /// The body and its type.
    pub(crate) fn body(&self, style: ErrorBody) -> (Vec<u8>, &'static str) {
        let Self { message, retry_after, limit, remaining, reset, window, rule, violated } = self;
        let details = Details {
            retry_after: *retry_after,
            limit: *limit,
            remaining: *remaining,
            reset: *reset,
            window,
            rule,
        };
        let (body, content_type) = match style {
            ErrorBody::Flat => {
                let flat = Flat { error: "rate_limit_exceeded", message, details };
                (serde_json::to_vec(&flat), "application/json")
            }
            ErrorBody::Nested => {
                let error = Nested { code: "RATE_LIMITED", message, details };
                (serde_json::to_vec(&json!({ "error": error })), "application/json")
            }
            ErrorBody::Problem => {
                let problem = Problem {
                    kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
                    title: "Request cannot be satisfied as assigned quota has been exceeded",
                    status: 429,
                    detail: message,
                    violated,
                    details,
                };
                (serde_json::to_vec(&problem), "application/problem+json")
            }
        };
        // Numbers and names are always JSON.
        let mut body = body.unwrap_or_default();
        body.push(b'\n');
        (body, content_type)
    }
}

/// What every body says in the same words.
#[derive(Serialize)]
struct Details<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    limit: u64,
    remaining: u64,
    reset: u64,
    window: &'a str,
    rule: &'a str,
}

#[derive(Serialize)]
struct Flat<'a> {
    error: &'static str,
    message: &'a str,
    #[serde(flatten)]
    details: Details<'a>,
}

#[derive(Serialize)]
struct Nested<'a> {
    code: &'static str,
    message: &'a str,
    #[serde(flatten)]
    details: Details<'a>,
}

/// As RFC 9457 has it.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(rename = "violated-policies")]
    violated: &'a [String],
    #[serde(flatten)]
    details: Details<'a>,
}

/// The second from which the limit is whole again.
pub(crate) fn reset(at: Timestamp, outcome: &Outcome) -> u64 {
    (at + outcome.reset_after).as_secs_ceil()
}

/// Up to a tenth later, always the same for one client, so that not all come back at one instant.
fn spread(seconds: u64, client: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    client.hash(&mut hasher);
    seconds + hasher.finish() % (seconds / 10 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
