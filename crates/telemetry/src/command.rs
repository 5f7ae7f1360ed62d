//! Log lines and spans of commands of the Redis protocol.
//!
//! Commands are decided and counted in batches, so they have no record of their own: only those that are sampled are described.

use std::net::IpAddr;

use tidegate_core::DecisionKind;
use tidegate_policy::{ClientKind, ClientName};
use tidegate_store::ClockReading;

use crate::log::{AccessEntry, AccessSubject, LogSampling};
use crate::record::Recorder;
use crate::trace::{TraceContext, TraceSpans, span_id};

/// Longer names are shortened like secrets.
const MAX_NAME: usize = 120;

/// Writes the log lines and spans of commands.
#[derive(Debug)]
pub struct CommandLog<'r> {
    recorder: &'r Recorder,
    sampling: LogSampling,
}

/// A command that was executed.
#[derive(Debug)]
pub struct CommandRecord<'c> {
    /// Its name.
    pub name: &'static str,
    /// The address at the other end of the connection.
    pub peer: IpAddr,
    /// When its execution started.
    pub start: ClockReading,
    /// The client, if it is known.
    pub client: Option<CommandClient<'c>>,
    /// The name of the rule.
    pub rule: Option<&'c str>,
    /// The decision, and how many nanoseconds it took.
    pub decision: Option<(DecisionKind, u64)>,
    /// The limit in the reply, and its remaining units.
    pub limit: Option<(u64, u64)>,
    /// The seconds until a retry.
    pub retry_after: Option<u64>,
    /// Why the reply is an error.
    pub failure: Option<CommandFailure>,
}

/// The client of a command.
#[derive(Clone, Copy, Debug)]
pub enum CommandClient<'c> {
    /// A client of the policy: the bytes of its key.
    Key(&'c [u8]),
    /// A name that the caller has chosen. Unless it is one such as `user:bob`, it may be a secret.
    Chosen(&'c [u8]),
}

/// Why a command was answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandFailure {
    /// Its arguments are invalid.
    BadRequest,
    /// The policy has no such rule.
    NoRule,
    /// The store failed.
    StoreFailed,
}

impl CommandFailure {
    /// The code in logs: that of the HTTP protocol.
    pub const fn code(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::NoRule => "no_rule",
            Self::StoreFailed => "store_unavailable",
        }
    }
}

impl<'r> CommandLog<'r> {
    #[inline]
    pub(crate) fn new(recorder: &'r Recorder) -> Option<Self> {
        let sampling = recorder.log.sampling();
        let is_on =
            !sampling.access.is_none() || !sampling.rejected.is_none() || recorder.tracer.starts_traces();
        is_on.then_some(Self { recorder, sampling })
    }

    /// Writes the line and the spans of a command with this decision, if it is sampled for them.
    pub fn record<'c>(&self, decision: Option<DecisionKind>, describe: impl FnOnce() -> CommandRecord<'c>) {
        let Recorder { protocol, log, tracer, clock, .. } = self.recorder;
        let is_rejected = decision == Some(DecisionKind::Rejected);
        let sample = if is_rejected { self.sampling.rejected } else { self.sampling.access };
        let is_logged = !sample.is_none() && sample.includes(fastrand::u32(..));
        let trace = tracer.start();
        if !is_logged && trace.is_none() {
            return;
        }
        let command = describe();
        let subject = AccessSubject::Command { name: command.name, peer: command.peer };
        let mut entry = AccessEntry::new(*protocol, subject, command.start);
        command.fill(&mut entry);
        let now = clock.read();
        if is_logged {
            let trace_id = trace.map(TraceContext::trace_id_text);
            log.send(entry.to_line(now, command.decision, None, trace_id.as_deref()));
        }
        if let Some(context) = trace {
            let spans = TraceSpans { context, parent: None, attempt_span: span_id() };
            tracer.send(spans.build(&entry, now, command.decision, None));
        }
    }
}

impl CommandRecord<'_> {
    /// A command of which nothing else is known.
    pub fn new(name: &'static str, peer: IpAddr, start: ClockReading) -> Self {
        Self {
            name,
            peer,
            start,
            client: None,
            rule: None,
            decision: None,
            limit: None,
            retry_after: None,
            failure: None,
        }
    }

    fn fill(&self, entry: &mut AccessEntry) {
        entry.decision_start = self.decision.map(|_| self.start.at);
        match self.client {
            Some(CommandClient::Key(key)) => entry.set_client(key),
            Some(CommandClient::Chosen(name)) => {
                if let Some(text) = shown(name) {
                    entry.set_client_text(text);
                }
            }
            None => {}
        }
        match (self.rule, self.limit) {
            (Some(rule), Some((limit, remaining))) => entry.set_limit(rule, limit, remaining),
            (Some(rule), None) => entry.set_rule(rule),
            (None, _) => {}
        }
        if let Some(failure) = self.failure {
            entry.set_error(failure.code(), None);
        }
        if let Some(seconds) = self.retry_after {
            entry.set_retry_after(seconds);
        }
    }
}

/// A name that a caller has chosen, as logs show clients: `user:bob` and `api_key:sk_l…#b59c1698`. Any other name may be or
/// contain a secret, so only its beginning and a hash are shown: `key:sk_l…#b59c1698`.
fn shown(name: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(name);
    let known = if name.len() <= MAX_NAME { ClientName::of_identity(&text).ok() } else { None };
    if let Some(known) = known {
        return Some(known.to_string());
    }
    let secret = ClientName::of_identities([(ClientKind::ApiKey, &*text)]).ok()?.to_string();
    secret.split_once(':').map(|(_, hashed)| format!("key:{hashed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_name_is_shown_as_the_client_that_it_names() {
        let names = [
            ("user:bob", "user:bob"),
            ("ip:203.0.113.7", "ip:203.0.113.7"),
            ("user:a\u{1b}b", "user:a%1Bb"),
            ("api_key:sk_live_51H_very_secret", "api_key:sk_l…#b59c1698"),
        ];
        for (name, expected) in names {
            assert_eq!(shown(name.as_bytes()).as_deref(), Some(expected));
        }
    }

    #[test]
    fn chosen_name_without_a_kind_of_client_is_hashed() {
        assert_eq!(shown(b"sk_live_51H_very_secret").as_deref(), Some("key:sk_l…#b59c1698"));
        for name in [&b"sk_live_51H"[..], b"token:sk_live_51H_very_secret", b"ip:sk_live_51H", b"\xff\xfe"] {
            let text = shown(name).unwrap();
            assert!(text.starts_with("key:") && text.contains("…#") && !text.contains("51H"), "{text}");
        }
        let long = shown(format!("user:{}", "x".repeat(64 << 10)).as_bytes()).unwrap();
        assert!(long.starts_with("key:user…#"), "{long}");
        assert_eq!(shown(b""), None);
    }
}
