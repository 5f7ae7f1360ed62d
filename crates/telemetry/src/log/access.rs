//! The log line of one request.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use opentelemetry::KeyValue;
use tidegate_core::{ActionKind, DecisionKind, Timestamp};
use tidegate_policy::ClientName;
use tidegate_store::ClockReading;

use super::json::JsonLine;
use crate::command::CommandFailure;
use crate::metrics::{AttemptResult, Protocol};
use crate::trace::number;

/// The properties of a request that are logged. They contain no secrets.
#[derive(Clone, Debug)]
pub struct RequestSummary {
    /// The method.
    pub method: String,
    /// The requested host.
    pub host: String,
    /// The requested path, without the query.
    pub path: String,
    /// The address at the other end of the connection: the client, or a proxy in front of the gateway.
    pub peer: IpAddr,
    /// The HTTP version.
    pub version: &'static str,
    /// The declared length of the body.
    pub bytes: Option<u64>,
}

/// What a line is about.
#[derive(Debug)]
pub(crate) enum AccessSubject {
    Request(RequestSummary),
    /// A command of the Redis protocol.
    Command {
        name: &'static str,
        peer: IpAddr,
    },
}

impl AccessSubject {
    /// Writes its fields. Returns the declared length of a request's body.
    fn write(&self, line: &mut JsonLine) -> Option<u64> {
        let (peer, bytes) = match self {
            Self::Request(RequestSummary { method, host, path, peer, version, bytes }) => {
                line.text("method", method);
                line.text("host", host);
                line.text("path", path);
                line.text("version", version);
                (peer, *bytes)
            }
            Self::Command { name, peer } => {
                line.text("command", name);
                (peer, None)
            }
        };
        line.text("peer", &peer.to_string());
        bytes
    }
}

/// A request or a command that may get a log line or a trace.
#[derive(Debug)]
pub(crate) struct AccessEntry {
    protocol: Protocol,
    subject: AccessSubject,
    pub(crate) start: ClockReading,
    pub(crate) decision_start: Option<Timestamp>,
    id: Option<String>,
    client: Option<ClientEntry>,
    rule: Option<String>,
    /// The limit that is reported, and its remaining units.
    limit: Option<(u64, u64)>,
    action: Option<ActionKind>,
    retry_after: Option<u64>,
    pub(crate) attempts: Vec<AttemptEntry>,
    cause: Option<&'static str>,
    /// Its limits admitted it, but it was not served, and its charge was refunded.
    is_refunded: bool,
    bytes: Option<u64>,
}

/// The client of a line. Its text has no secrets.
#[derive(Debug)]
enum ClientEntry {
    Name(ClientName),
    Text(String),
}

impl fmt::Display for ClientEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// An attempt to get a response from an upstream.
#[derive(Debug)]
pub(crate) struct AttemptEntry {
    pub(crate) upstream: String,
    pub(crate) server: String,
    pub(crate) result: AttemptResult,
    pub(crate) start: Timestamp,
    pub(crate) nanos: u64,
}

impl AccessEntry {
    pub(crate) fn new(protocol: Protocol, subject: AccessSubject, start: ClockReading) -> Self {
        Self {
            protocol,
            subject,
            start,
            decision_start: None,
            id: None,
            client: None,
            rule: None,
            limit: None,
            action: None,
            retry_after: None,
            attempts: Vec::new(),
            cause: None,
            is_refunded: false,
            bytes: None,
        }
    }

    pub(crate) fn set_id(&mut self, id: &str) {
        self.id = Some(id.to_owned());
    }

    pub(crate) fn set_client(&mut self, key: &[u8]) {
        self.client = Some(ClientEntry::Name(ClientName::from_key(key)));
    }

    /// Sets the client to a text without secrets.
    pub(crate) fn set_client_text(&mut self, text: String) {
        self.client = Some(ClientEntry::Text(text));
    }

    pub(crate) fn set_rule(&mut self, rule: &str) {
        self.rule = Some(rule.to_owned());
    }

    pub(crate) fn set_limit(&mut self, rule: &str, limit: u64, remaining: u64) {
        self.set_rule(rule);
        self.limit = Some((limit, remaining));
    }

    pub(crate) fn set_action(&mut self, action: ActionKind) {
        self.action = Some(action);
    }

    pub(crate) fn add_attempt(&mut self, attempt: AttemptEntry) {
        self.attempts.push(attempt);
    }

    /// The name of the request's span.
    pub(crate) fn span_name(&self) -> Cow<'static, str> {
        match &self.subject {
            AccessSubject::Request(summary) => summary.method.clone().into(),
            AccessSubject::Command { name, .. } => (*name).into(),
        }
    }

    /// Whether a response was due that no client got: its status is unknown. Commands have no statuses.
    pub(crate) fn is_unanswered(&self, status: Option<u16>) -> bool {
        status.is_none() && matches!(self.subject, AccessSubject::Request(_))
    }

    /// Whether a command has no result because of an error of this side.
    pub(crate) fn is_failed_command(&self) -> bool {
        let failure = CommandFailure::StoreFailed.code();
        matches!(self.subject, AccessSubject::Command { .. }) && self.cause == Some(failure)
    }

    /// The attributes of the request's span.
    pub(crate) fn request_attributes(&self) -> Vec<KeyValue> {
        let mut attributes = vec![KeyValue::new("tidegate.protocol", self.protocol.name())];
        match &self.subject {
            AccessSubject::Request(RequestSummary { method, host, path, peer, version, .. }) => {
                attributes.extend([
                    KeyValue::new("http.request.method", method.clone()),
                    KeyValue::new("url.path", path.clone()),
                    KeyValue::new("server.address", host.clone()),
                    KeyValue::new("network.peer.address", peer.to_string()),
                    KeyValue::new("network.protocol.version", *version),
                ]);
            }
            AccessSubject::Command { name, peer } => attributes.extend([
                KeyValue::new("tidegate.command", *name),
                KeyValue::new("network.peer.address", peer.to_string()),
            ]),
        }
        attributes.extend(self.id.as_ref().map(|id| KeyValue::new("tidegate.request_id", id.clone())));
        attributes.extend(self.cause.map(|cause| KeyValue::new("error.type", cause)));
        attributes
    }

    /// The attributes of the decision's span.
    pub(crate) fn decision_attributes(&self) -> Vec<KeyValue> {
        let client = self.client.as_ref().map(|client| KeyValue::new("tidegate.client", client.to_string()));
        let mut attributes: Vec<_> = client.into_iter().collect();
        attributes.extend(self.rule.as_ref().map(|rule| KeyValue::new("tidegate.rule", rule.clone())));
        if let Some((limit, remaining)) = self.limit {
            attributes.push(KeyValue::new("tidegate.limit", number(limit)));
            attributes
                .extend((!self.is_refunded).then(|| KeyValue::new("tidegate.remaining", number(remaining))));
        }
        attributes.extend(self.action.map(|action| KeyValue::new("tidegate.action", action.name())));
        attributes
            .extend(self.retry_after.map(|seconds| KeyValue::new("tidegate.retry_after", number(seconds))));
        attributes
    }

    pub(crate) fn set_error(&mut self, cause: &'static str, retry_after: Option<u64>) {
        (self.cause, self.retry_after) = (Some(cause), retry_after);
    }

    /// An admitted request was refused. Its charge was refunded unless it was sent to a server.
    pub(crate) fn set_unserved(&mut self) {
        self.is_refunded = self.attempts.is_empty();
    }

    /// How the decision is named: a request that was refunded is neither rejected by a limit nor served.
    pub(crate) fn decision_name(&self, decision: DecisionKind) -> &'static str {
        match decision {
            DecisionKind::Admitted if self.is_refunded => "refunded",
            decision => decision.name(),
        }
    }

    pub(crate) fn set_retry_after(&mut self, seconds: u64) {
        self.retry_after = Some(seconds);
    }

    pub(crate) fn set_response_bytes(&mut self, bytes: Option<u64>) {
        self.bytes = bytes;
    }

    /// Formats the line. Unknown values are left out.
    pub(crate) fn to_line(
        &self,
        now: ClockReading,
        decision: Option<(DecisionKind, u64)>,
        status: Option<u16>,
        trace_id: Option<&str>,
    ) -> Box<[u8]> {
        let mut line = JsonLine::new(now.at, "request");
        if let Some(id) = &self.id {
            line.text("id", id);
        }
        if let Some(trace_id) = trace_id {
            line.text("trace_id", trace_id);
        }
        line.text("protocol", self.protocol.name());
        let request_bytes = self.subject.write(&mut line);
        if let Some(client) = &self.client {
            line.text("client", &client.to_string());
        }
        if let Some((decision, nanos)) = decision {
            line.text("decision", self.decision_name(decision));
            line.millis("decision_ms", nanos);
        }
        if let Some(action) = self.action {
            line.text("action", action.name());
        }
        if let Some(rule) = &self.rule {
            line.text("rule", rule);
        }
        if let Some((limit, remaining)) = self.limit {
            line.number("limit", limit);
            if !self.is_refunded {
                line.number("remaining", remaining);
            }
        }
        if let Some(seconds) = self.retry_after {
            line.number("retry_after", seconds);
        }
        if let Some(last) = self.attempts.last() {
            line.text("upstream", &last.upstream);
            line.text("server", &last.server);
            line.text("result", last.result.name());
            line.number("tries", self.attempts.len() as u64);
            line.millis("upstream_ms", self.attempts.iter().map(|attempt| attempt.nanos).sum());
        }
        if let Some(cause) = self.cause {
            line.text("cause", cause);
        }
        if let Some(status) = status {
            line.number("status", status);
        } else if self.is_unanswered(status) {
            line.text("cause", "client_gone");
        }
        if let Some(bytes) = request_bytes {
            line.number("request_bytes", bytes);
        }
        if let Some(bytes) = self.bytes {
            line.number("response_bytes", bytes);
        }
        line.millis("total_ms", now.nanos_since(self.start));
        line.into_bytes()
    }
}
