//! `/v1/explain`: how the gateway would handle a request, and why.

use std::collections::BTreeMap;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use tidegate_core::Timestamp;
use tidegate_policy::{BodyFacts, ExplainRequest, ExplainedCheck, LiveCounters, RuntimeData, explain_live};
use tidegate_store::Store;

use super::store_unavailable;
use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

/// The request to explain.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainBody {
    #[serde(default = "get")]
    method: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The address at the other end of the connection.
    #[serde(default = "loopback")]
    from: IpAddr,
    /// Whether the present state of the counters and the lock-outs counts. Nothing is charged.
    #[serde(default)]
    live: bool,
    /// Without it, the request has none.
    #[serde(default)]
    body: String,
}

fn get() -> String {
    "GET".to_owned()
}

fn loopback() -> IpAddr {
    [127, 0, 0, 1].into()
}

/// Uses the active policy, its API keys and the current bans. Counters are treated as unused, unless the body asks for their state.
pub(super) async fn explain<R: Backend>(
    server: &AdminServer<R>,
    body: &ExplainBody,
) -> Result<ApiResponse, ApiError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &body.headers {
        let invalid = |message| ApiError::invalid_field("headers", message);
        let name = HeaderName::try_from(name).map_err(|_| invalid("invalid header name"))?;
        let value = HeaderValue::try_from(value)
            .map_err(|_| invalid("invalid header value: it contains a control character"))?;
        headers.append(name, value);
    }
    let request = ExplainRequest {
        method: &body.method,
        target: &body.path,
        headers: &headers,
        peer: body.from,
        body: BodyFacts::Complete(body.body.as_bytes()),
    };
    let (active, bans) = (server.backend.limiter().policy(), server.backend.limiter().bans());
    let runtime = RuntimeData { directory: active.directory.as_deref(), bans: Some(&bans) };
    let now = server.state.now();
    let mut explanation = explain_live(&active.matcher, &request, (runtime, now), None);
    if body.live && !explanation.checks.is_empty() {
        let live = live_counters(server, &explanation.checks, now).await?;
        explanation = explain_live(&active.matcher, &request, (runtime, now), Some(&live));
    }
    Ok(response::json(StatusCode::OK, &explanation))
}

/// The state of the counters and lock-outs of these checks.
async fn live_counters<R: Backend>(
    server: &AdminServer<R>,
    checks: &[ExplainedCheck],
    now: Timestamp,
) -> Result<LiveCounters, ApiError> {
    let limiter = server.backend.limiter();
    let penalties = limiter.penalties();
    let lock_out = |(index, check): (usize, &ExplainedCheck)| {
        Some((index, penalties.lock_out(check.key.as_key(), now)?))
    };
    let lock_outs = checks.iter().enumerate().filter_map(lock_out).collect();
    let checks: Vec<_> = checks.iter().map(ExplainedCheck::as_check).collect();
    let decision = limiter.store().peek(&checks, now).await.map_err(|error| store_unavailable(&error))?;
    Ok(LiveCounters { decision, lock_outs })
}
