//! Tests of the HTTP protocol.

mod authorize;
mod charges;
mod checks;
mod connections;
mod errors;
mod openapi;
mod reservations;
mod rule_operations;
mod snippets;

use serde_json::Value;
use tidegate_telemetry::Protocol;
use tidegate_testkit::client::request;
use tidegate_testkit::message::Response;

use crate::fixture::TestService;

/// Ten requests per minute and client, and a rule that counts pairs.
const POLICY: &str = "
clients: { user: { header: X-User-Id } }
rate_limits:
  default: { requests: 10, window: 1m, algorithm: fixed_window }
  rules:
    - { name: by-pair, per: [ip, user], requests: 3, window: 1m, match: { path: /never } }
    - { name: all, per: everybody, requests: 5, window: 1m, match: { path: /never } }
";

impl TestService {
    fn http(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        request(&self.address(Protocol::Http).to_string(), method, path, headers, body)
    }

    fn post(&self, path: &str, body: &str) -> Response {
        self.http("POST", path, "Content-Type: application/json\r\n", body)
    }

    /// The JSON of a response that must have this status.
    #[track_caller]
    pub(crate) fn post_json(&self, path: &str, body: &str, status: u16) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, status, "{path} {body}: {response:?}");
        response.json()
    }
}
