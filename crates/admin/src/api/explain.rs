//! `/v1/explain`: how the gateway would handle a request, and why.

use std::collections::BTreeMap;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use tidegate_policy::{ExplainRequest, RuntimeData, explain as explain_request};

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
}

fn get() -> String {
    "GET".to_owned()
}

fn loopback() -> IpAddr {
    [127, 0, 0, 1].into()
}

/// Uses the active policy, its API keys and the current bans. Counters are treated as unused.
pub(super) fn explain<R: Backend>(
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
    let request =
        ExplainRequest { method: &body.method, target: &body.path, headers: &headers, peer: body.from };
    let (active, bans) = (server.backend.limiter().policy(), server.backend.limiter().bans());
    let runtime = RuntimeData { directory: active.directory.as_deref(), bans: Some(&bans) };
    Ok(response::json(
        StatusCode::OK,
        &explain_request(&active.matcher, &request, runtime, server.state.now()),
    ))
}
