//! The line of one request.

use std::net::IpAddr;

use tidegate_core::Outcome;
use tidegate_policy::{ClientName, Rule};
use tidegate_store::Reading;

use super::object::Object;
use crate::metrics::{Decided, Try};

/// What is seen of a request at first sight. Secrets are not in it.
#[derive(Clone, Debug)]
pub struct Seen {
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
pub(crate) struct Access {
    seen: Seen,
    began: Reading,
    id: Option<String>,
    client: Option<ClientName>,
    judged: Option<Judgement>,
    retry_after: Option<u64>,
    tries: Vec<Tried>,
    cause: Option<&'static str>,
    bytes: Option<u64>,
}

/// The rule that the answer's headers speak of.
#[derive(Debug)]
struct Judgement {
    rule: String,
    limit: u64,
    remaining: u64,
}

#[derive(Debug)]
struct Tried {
    upstream: String,
    server: String,
    result: Try,
    nanos: u64,
}

impl Access {
    pub(crate) fn new(seen: Seen, began: Reading) -> Self {
        Self {
            seen,
            began,
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
        self.client = Some(ClientName::of(key));
    }

    pub(crate) fn judged(&mut self, rule: &Rule, outcome: &Outcome) {
        let Outcome { limit, remaining, .. } = *outcome;
        self.judged = Some(Judgement { rule: rule.name.clone(), limit, remaining });
    }

    pub(crate) fn tried(&mut self, upstream: &str, server: &str, result: Try, nanos: u64) {
        self.tries.push(Tried { upstream: upstream.to_owned(), server: server.to_owned(), result, nanos });
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
        now: Reading,
        decided: Option<(Decided, u64)>,
        status: Option<u16>,
        trace: Option<&str>,
    ) -> Box<[u8]> {
        let mut line = Object::new(now.at, "request");
        let Seen { method, host, path, peer, version, bytes } = &self.seen;
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
        if let Some(Judgement { rule, limit, remaining }) = &self.judged {
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
