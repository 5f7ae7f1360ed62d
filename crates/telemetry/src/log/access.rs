//! The line of one request.

use std::net::IpAddr;

use opentelemetry::KeyValue;
use tidegate_core::Timestamp;
use tidegate_policy::ClientName;
use tidegate_store::ClockReading;

use super::json::Object;
use crate::metrics::{AttemptResult, DecisionKind};
use crate::trace::number;

/// What is seen of a request at first sight. Secrets are not in it.
#[derive(Clone, Debug)]
pub struct RequestSummary {
    /// Its method.
    pub method: String,
    /// The host it asks for.
    pub host: String,
    /// The path it asks for, without the query.
    pub path: String,
    /// Who is connected: the client, or a proxy before us.
    pub peer: IpAddr,
    /// The version of HTTP.
    pub version: &'static str,
    /// How many bytes it says it has.
    pub bytes: Option<u64>,
}

/// A request that gets a line.
#[derive(Debug)]
pub(crate) struct AccessEntry {
    pub(crate) seen: RequestSummary,
    pub(crate) began: ClockReading,
    pub(crate) decision_began: Option<Timestamp>,
    id: Option<String>,
    client: Option<ClientName>,
    judged: Option<LimitEntry>,
    retry_after: Option<u64>,
    pub(crate) tries: Vec<AttemptEntry>,
    cause: Option<&'static str>,
    bytes: Option<u64>,
}

/// The rule that the answer's headers speak of.
#[derive(Debug)]
struct LimitEntry {
    rule: String,
    limit: u64,
    remaining: u64,
}

/// A try to get an answer from an upstream.
#[derive(Debug)]
pub(crate) struct AttemptEntry {
    pub(crate) upstream: String,
    pub(crate) server: String,
    pub(crate) result: AttemptResult,
    pub(crate) began: Timestamp,
    pub(crate) nanos: u64,
}

impl AccessEntry {
    pub(crate) fn new(seen: RequestSummary, began: ClockReading) -> Self {
        Self {
            seen,
            began,
            decision_began: None,
            id: None,
            client: None,
            judged: None,
            retry_after: None,
            tries: Vec::new(),
            cause: None,
            bytes: None,
        }
    }

    pub(crate) fn id(&mut self, id: &str) {
        self.id = Some(id.to_owned());
    }

    pub(crate) fn client(&mut self, key: &[u8]) {
        self.client = Some(ClientName::from_key(key));
    }

    pub(crate) fn judged(&mut self, rule: &str, limit: u64, remaining: u64) {
        self.judged = Some(LimitEntry { rule: rule.to_owned(), limit, remaining });
    }

    pub(crate) fn tried(&mut self, tried: AttemptEntry) {
        self.tries.push(tried);
    }

    /// What a span says of the request itself.
    pub(crate) fn request_attributes(&self) -> Vec<KeyValue> {
        let RequestSummary { method, host, path, peer, version, .. } = &self.seen;
        let mut attributes = vec![
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

    /// What a span says of the decision.
    pub(crate) fn decision_attributes(&self) -> Vec<KeyValue> {
        let client = self.client.as_ref().map(|client| KeyValue::new("tidegate.client", client.to_string()));
        let mut attributes: Vec<_> = client.into_iter().collect();
        if let Some(LimitEntry { rule, limit, remaining }) = &self.judged {
            attributes.push(KeyValue::new("tidegate.rule", rule.clone()));
            attributes.push(KeyValue::new("tidegate.limit", number(*limit)));
            attributes.push(KeyValue::new("tidegate.remaining", number(*remaining)));
        }
        attributes
            .extend(self.retry_after.map(|seconds| KeyValue::new("tidegate.retry_after", number(seconds))));
        attributes
    }

    pub(crate) fn failed(&mut self, cause: &'static str, retry_after: Option<u64>) {
        (self.cause, self.retry_after) = (Some(cause), retry_after);
    }

    pub(crate) fn answered(&mut self, bytes: Option<u64>) {
        self.bytes = bytes;
    }

    /// The line. What is not known is left out.
    pub(crate) fn line(
        &self,
        now: ClockReading,
        decided: Option<(DecisionKind, u64)>,
        status: Option<u16>,
        trace: Option<&str>,
    ) -> Box<[u8]> {
        let mut line = Object::new(now.at, "request");
        let RequestSummary { method, host, path, peer, version, bytes } = &self.seen;
        if let Some(id) = &self.id {
            line.text("id", id);
        }
        if let Some(trace) = trace {
            line.text("trace_id", trace);
        }
        line.text("method", method);
        line.text("host", host);
        line.text("path", path);
        line.text("version", version);
        line.text("peer", &peer.to_string());
        if let Some(client) = &self.client {
            line.text("client", &client.to_string());
        }
        if let Some((decided, nanos)) = decided {
            line.text("decision", decided.name());
            line.millis("decision_ms", nanos);
        }
        if let Some(LimitEntry { rule, limit, remaining }) = &self.judged {
            line.text("rule", rule);
            line.number("limit", *limit);
            line.number("remaining", *remaining);
        }
        if let Some(seconds) = self.retry_after {
            line.number("retry_after", seconds);
        }
        if let Some(last) = self.tries.last() {
            line.text("upstream", &last.upstream);
            line.text("server", &last.server);
            line.text("result", last.result.name());
            line.number("tries", self.tries.len() as u64);
            line.millis("upstream_ms", self.tries.iter().map(|tried| tried.nanos).sum());
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
        line.millis("total_ms", now.nanos_since(self.began));
        line.into_line()
    }
}
