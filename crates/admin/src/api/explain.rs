//! `/v1/explain`: what would become of a request, and why.

use std::collections::BTreeMap;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use tidegate_policy::{ExplainRequest, RuntimeData, explain as explain_request};

use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

/// A request that nobody sends.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
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

/// By the policy in force, its API keys and the bans of this moment; counters are taken for whole.
pub(super) fn explain<R: Backend>(server: &AdminServer<R>, asked: &Asked) -> Result<ApiResponse, ApiError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &asked.headers {
        let bad = |what| ApiError::bad("headers", what);
        let name = HeaderName::try_from(name).map_err(|_| bad("a header's name cannot be"))?;
        let value =
            HeaderValue::try_from(value).map_err(|_| bad("a header's value holds a control character"))?;
        headers.append(name, value);
    }
    let request =
        ExplainRequest { method: &asked.method, target: &asked.path, headers: &headers, peer: asked.from };
    let (active, bans) = (server.backend.limiter().policy(), server.backend.limiter().bans());
    let known = RuntimeData { directory: active.directory.as_deref(), bans: Some(&bans) };
    Ok(response::json(StatusCode::OK, &explain_request(&active.matcher, &request, known, server.state.now())))
}
