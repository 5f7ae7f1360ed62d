//! The log line of one request.

use std::net::IpAddr;

use opentelemetry::KeyValue;
use tidegate_core::Timestamp;
use tidegate_policy::ClientName;
use tidegate_store::ClockReading;

use super::json::JsonLine;
use crate::metrics::{AttemptResult, DecisionKind, Protocol};
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

/// A request that may get a log line or a trace.
#[derive(Debug)]
pub(crate) struct AccessEntry {
    protocol: Protocol,
    pub(crate) summary: RequestSummary,
    pub(crate) start: ClockReading,
    pub(crate) decision_start: Option<Timestamp>,
    id: Option<String>,
    client: Option<ClientName>,
    limit: Option<LimitEntry>,
    retry_after: Option<u64>,
    pub(crate) attempts: Vec<AttemptEntry>,
    cause: Option<&'static str>,
    bytes: Option<u64>,
}

/// The limit that the response headers report.
#[derive(Debug)]
struct LimitEntry {
    rule: String,
    limit: u64,
    remaining: u64,
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
    pub(crate) fn new(protocol: Protocol, summary: RequestSummary, start: ClockReading) -> Self {
        Self {
            protocol,
            summary,
            start,
            decision_start: None,
            id: None,
            client: None,
            limit: None,
            retry_after: None,
            attempts: Vec::new(),
            cause: None,
            bytes: None,
        }
    }

    pub(crate) fn set_id(&mut self, id: &str) {
        self.id = Some(id.to_owned());
    }

    pub(crate) fn set_client(&mut self, key: &[u8]) {
        self.client = Some(ClientName::from_key(key));
    }

    pub(crate) fn set_limit(&mut self, rule: &str, limit: u64, remaining: u64) {
        self.limit = Some(LimitEntry { rule: rule.to_owned(), limit, remaining });
    }

    pub(crate) fn add_attempt(&mut self, attempt: AttemptEntry) {
        self.attempts.push(attempt);
    }

    /// The attributes of the request's span.
    pub(crate) fn request_attributes(&self) -> Vec<KeyValue> {
        let RequestSummary { method, host, path, peer, version, .. } = &self.summary;
        let mut attributes = vec![
            KeyValue::new("tidegate.protocol", self.protocol.name()),
            KeyValue::new("http.request.method", method.clone()),
            KeyValue::new("url.path", path.clone()),
            KeyValue::new("server.address", host.clone()),
            KeyValue::new("network.peer.address", peer.to_string()),
            KeyValue::new("network.protocol.version", *version),
        ];
        attributes.extend(self.id.as_ref().map(|id| KeyValue::new("tidegate.request_id", id.clone())));
        attributes.extend(self.cause.map(|cause| KeyValue::new("error.type", cause)));
        attributes
    }

    /// The attributes of the decision's span.
    pub(crate) fn decision_attributes(&self) -> Vec<KeyValue> {
        let client = self.client.as_ref().map(|client| KeyValue::new("tidegate.client", client.to_string()));
        let mut attributes: Vec<_> = client.into_iter().collect();
        if let Some(LimitEntry { rule, limit, remaining }) = &self.limit {
            attributes.push(KeyValue::new("tidegate.rule", rule.clone()));
            attributes.push(KeyValue::new("tidegate.limit", number(*limit)));
            attributes.push(KeyValue::new("tidegate.remaining", number(*remaining)));
        }
        attributes
            .extend(self.retry_after.map(|seconds| KeyValue::new("tidegate.retry_after", number(seconds))));
        attributes
    }

    pub(crate) fn set_error(&mut self, cause: &'static str, retry_after: Option<u64>) {
        (self.cause, self.retry_after) = (Some(cause), retry_after);
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
        let RequestSummary { method, host, path, peer, version, bytes } = &self.summary;
        if let Some(id) = &self.id {
            line.text("id", id);
        }
        if let Some(trace_id) = trace_id {
            line.text("trace_id", trace_id);
        }
        line.text("protocol", self.protocol.name());
        line.text("method", method);
        line.text("host", host);
        line.text("path", path);
        line.text("version", version);
        line.text("peer", &peer.to_string());
        if let Some(client) = &self.client {
            line.text("client", &client.to_string());
        }
        if let Some((decision, nanos)) = decision {
            line.text("decision", decision.name());
            line.millis("decision_ms", nanos);
        }
        if let Some(LimitEntry { rule, limit, remaining }) = &self.limit {
            line.text("rule", rule);
            line.number("limit", *limit);
            line.number("remaining", *remaining);
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
        match status {
            Some(status) => line.number("status", status),
            None => line.text("cause", "client_gone"),
        }
        if let Some(bytes) = *bytes {
            line.number("request_bytes", bytes);
        }
        if let Some(bytes) = self.bytes {
            line.number("response_bytes", bytes);
        }
        line.millis("total_ms", now.nanos_since(self.start));
        line.into_bytes()
    }
}
