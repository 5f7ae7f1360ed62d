//! What a 429 says: header and body agree.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use tidegate_core::{Decision, Outcome, Timestamp, Verdict};
use tidegate_policy::{ErrorBody, Rule, span_parts};

/// Room for most bodies.
const USUAL: usize = 320;

/// What is told about a request that a limit refused, written while the rule is at hand.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Seconds after which it would pass; `None` if it never would.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Vec<u8>,
    pub(crate) content_type: &'static str,
}

impl Refusal {
    /// What `decision` says to `client`. `refused` is the rule that is reported and its outcome, `violated` the names
    /// of all rules that refuse.
    pub(crate) fn new<'r>(
        style: ErrorBody,
        decision: &Decision,
        refused: (&Rule, &Outcome),
        violated: impl Iterator<Item = &'r str>,
        client: &[u8],
    ) -> Self {
        let retry_after = match decision.verdict {
            Verdict::NotUntil { retry_after } => Some(spread(retry_after.as_secs_ceil(), client)),
            _ => None,
        };
        let mut body = Json(Vec::with_capacity(USUAL));
        match style {
            ErrorBody::Flat => body.put(r#"{"error":"rate_limit_exceeded","message":""#),
            ErrorBody::Nested => body.put(r#"{"error":{"code":"RATE_LIMITED","message":""#),
            // As RFC 9457 has it.
            ErrorBody::Problem => body.put(concat!(
                r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
                r#""title":"Request cannot be satisfied as assigned quota has been exceeded","#,
                r#""status":429,"detail":""#
            )),
        }
        body.message(retry_after);
        if style == ErrorBody::Problem {
            body.put(r#","violated-policies":["#);
            for (number, name) in violated.enumerate() {
                body.put(if number > 0 { "," } else { "" });
                body.text(name);
            }
            body.put("]");
        }
        body.details(retry_after, decision.at, refused);
        body.put(if style == ErrorBody::Nested { "}}\n" } else { "}\n" });
        let content_type =
            if style == ErrorBody::Problem { "application/problem+json" } else { "application/json" };
        Self { retry_after, body: body.0, content_type }
    }
}

/// JSON that is written in order.
struct Json(Vec<u8>);

impl Json {
    fn put(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, before: &str, number: u64) {
        self.put(before);
        self.put(itoa::Buffer::new().format(number));
    }

    fn text(&mut self, text: &str) {
        // Text is always JSON, and memory takes it.
        let _ = serde_json::to_writer(&mut self.0, text);
    }

    /// The sentence for people, and its closing quote.
    fn message(&mut self, retry_after: Option<u64>) {
        match retry_after {
            Some(1) => self.put("Too many requests. Please retry after 1 second.\""),
            Some(seconds) => {
                self.number("Too many requests. Please retry after ", seconds);
                self.put(" seconds.\"");
            }
            None => self.put("This request costs more than its limit ever allows. Retrying does not help.\""),
        }
    }

    /// What every body says in the same words.
    fn details(&mut self, retry_after: Option<u64>, at: Timestamp, (rule, outcome): (&Rule, &Outcome)) {
        if let Some(seconds) = retry_after {
            self.number(r#","retry_after":"#, seconds);
        }
        self.number(r#","limit":"#, outcome.limit);
        self.number(r#","remaining":"#, outcome.remaining);
        self.number(r#","reset":"#, reset(at, outcome));
        let (count, unit) = span_parts(rule.window);
        self.number(r#","window":""#, count);
        self.put(unit);
        self.put(r#"","rule":"#);
        self.text(&rule.name);
    }
}

/// The second from which the limit is whole again.
pub(crate) fn reset(at: Timestamp, outcome: &Outcome) -> u64 {
    (at + outcome.reset_after).as_secs_ceil()
}

/// Up to a tenth later, always the same for one client, so that not all come back at one instant.
fn spread(seconds: u64, client: &[u8]) -> u64 {
    if seconds < 10 {
        return seconds;
    }
    seconds + FixedState::default().hash_one(client) % (seconds / 10 + 1)
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
