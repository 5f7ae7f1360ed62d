//! What a 429 says: header and body agree.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use tidegate_core::{LimitReport, Span, Timestamp};
use tidegate_policy::ErrorBody;

use crate::told::reset;

/// Room for most bodies.
const USUAL: usize = 320;

/// Why a request is rejected with 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A limit is used up.
    Limit,
    /// Its client is locked out.
    LockOut,
    /// Too many requests of its client are served at the same time.
    Concurrency,
}

impl Reason {
    /// The code of flat bodies, of logs and of traces.
    pub(crate) const fn code(self) -> &'static str {
        match self {
            Self::Limit => "rate_limit_exceeded",
            Self::LockOut => "locked_out",
            Self::Concurrency => "too_many_at_once",
        }
    }

    /// The code of nested bodies.
    const fn nested_code(self) -> &'static str {
        match self {
            Self::Limit => "RATE_LIMITED",
            Self::LockOut => "LOCKED_OUT",
            Self::Concurrency => "TOO_MANY_AT_ONCE",
        }
    }

    /// Type and title of a problem, as the draft of the rate limit headers registers them.
    const fn problem(self) -> &'static str {
        match self {
            Self::LockOut => concat!(
                r#"{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","#,
                r#""title":"Request not satisfied due to detection of abnormal request pattern","#
            ),
            Self::Limit | Self::Concurrency => concat!(
                r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
                r#""title":"Request cannot be satisfied as assigned quota has been exceeded","#
            ),
        }
    }

    /// The sentence for people. Without a time, the request is rejected at any time.
    pub(crate) fn message(self, retry_after: Option<u64>) -> String {
        let mut message = String::new();
        self.write_message(retry_after, |part| message.push_str(part));
        message
    }

    /// Writes the sentence in parts, none of which JSON has to escape.
    fn write_message(self, retry_after: Option<u64>, mut put: impl FnMut(&str)) {
        let Some(seconds) = retry_after else {
            return put("This request costs more than its limit ever allows. Retrying does not help.");
        };
        put(match self {
            Self::Limit => "Too many requests. Please retry after ",
            Self::LockOut => "Too many rejected requests: this client is locked out. Please retry after ",
            Self::Concurrency => "Too many requests at once. Please retry after ",
        });
        put(itoa::Buffer::new().format(seconds));
        put(if seconds == 1 { " second." } else { " seconds." });
    }
}

/// What is told about a request that is rejected with 429, written while the rule is at hand.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    /// Seconds after which it would pass; `None` if it never would.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Vec<u8>,
    pub(crate) content_type: &'static str,
}

impl Refusal {
    /// A rejection for `reason`, at `at`. `report` is the limit that is reported, `violated` the names of all limits that
    /// reject.
    pub(crate) fn new<'r>(
        style: ErrorBody,
        (reason, retry_after): (Reason, Option<u64>),
        (at, report): (Timestamp, &LimitReport<'_>),
        violated: impl Iterator<Item = &'r str>,
    ) -> Self {
        let mut body = Json(Vec::with_capacity(USUAL));
        match style {
            ErrorBody::Flat => {
                body.put(r#"{"error":""#);
                body.put(reason.code());
                body.put(r#"","message":""#);
            }
            ErrorBody::Nested => {
                body.put(r#"{"error":{"code":""#);
                body.put(reason.nested_code());
                body.put(r#"","message":""#);
            }
            // As RFC 9457 has it.
            ErrorBody::Problem => {
                body.put(reason.problem());
                body.put(r#""status":429,"detail":""#);
            }
        }
        reason.write_message(retry_after, |part| body.put(part));
        body.put("\"");
        if style == ErrorBody::Problem {
            body.put(r#","violated-policies":["#);
            for (number, name) in violated.enumerate() {
                body.put(if number > 0 { "," } else { "" });
                body.text(name);
            }
            body.put("]");
        }
        body.details(retry_after, at, report);
        body.put(if style == ErrorBody::Nested { "}}\n" } else { "}\n" });
        let content_type =
            if style == ErrorBody::Problem { "application/problem+json" } else { "application/json" };
        Self { reason, retry_after, body: body.0, content_type }
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

    /// What every body says in the same words.
    fn details(&mut self, retry_after: Option<u64>, at: Timestamp, report: &LimitReport<'_>) {
        if let Some(seconds) = retry_after {
            self.number(r#","retry_after":"#, seconds);
        }
        self.number(r#","limit":"#, report.quota);
        self.number(r#","remaining":"#, report.remaining);
        self.number(r#","reset":"#, reset(at, report));
        match report.window {
            Some(window) => {
                let (count, unit) = window.in_largest_unit();
                self.number(r#","window":""#, count);
                self.put(unit);
                self.put("\"");
            }
            None => self.put(r#","window":null"#),
        }
        self.put(r#","rule":"#);
        self.text(report.name);
    }
}

/// `Retry-After` of a wait: whole seconds, rounded up, and up to a tenth later. The share is always the same for one
/// client, so that not all clients come back at one instant.
pub(crate) fn retry_after(wait: Span, client: &[u8]) -> u64 {
    let seconds = wait.as_secs_ceil();
    if seconds < 10 {
        return seconds;
    }
    seconds + FixedState::default().hash_one(client) % (seconds / 10 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_never_early_at_most_a_tenth_late_and_the_same_each_time() {
        let mut seen = std::collections::BTreeSet::new();
        let wait = |client: u32| retry_after(Span::from_millis(99_001), &client.to_be_bytes());
        for client in 0..1_000 {
            let seconds = wait(client);
            assert!((100..=110).contains(&seconds));
            assert_eq!(seconds, wait(client));
            seen.insert(seconds);
        }
        assert_eq!(seen.len(), 11, "clients are spread over all of it");
        assert_eq!(retry_after(Span::from_secs(9), b"a"), 9, "a tenth of little is nothing");
        assert_eq!(retry_after(Span::from_micros(1), b"a"), 1);
    }
}
