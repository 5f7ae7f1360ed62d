//! `/v1/breakers`: open, close or reset circuit breakers.

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use crate::backend::{Backend, BreakerAction, BreakerError};
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

/// The body of a request to change a breaker.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BreakerRequest {
    upstream: String,
    /// All servers of the upstream without it.
    server: Option<String>,
    action: BreakerAction,
}

pub(super) fn change<R: Backend>(
    server: &AdminServer<R>,
    request: &BreakerRequest,
) -> Result<ApiResponse, ApiError> {
    let BreakerRequest { upstream, server: of_server, action } = request;
    server
        .backend
        .change_breaker(upstream, of_server.as_deref(), *action)
        .map_err(|error| breaker_error(&error))?;
    let subject =
        of_server.as_ref().map_or_else(|| upstream.clone(), |server| format!("{upstream} {server}"));
    let (event, message) = match action {
        BreakerAction::Open => ("breaker_forced_open", "circuit breaker forced open"),
        BreakerAction::Close => ("breaker_forced_closed", "circuit breaker forced closed"),
        BreakerAction::Reset => ("breaker_reset", "circuit breaker reset"),
    };
    server.backend.log_event(event, &format!("{message}: {subject}"), &subject);
    let body = json!({ "upstream": upstream, "server": of_server, "action": action });
    Ok(response::json(StatusCode::OK, &body))
}

fn breaker_error(error: &BreakerError) -> ApiError {
    let message = error.to_string();
    match error {
        BreakerError::Unknown { .. } => ApiError::new(StatusCode::NOT_FOUND, "unknown_upstream", message)
            .hint("`tidegate status` lists the upstreams and their servers"),
        BreakerError::NoBreaker { .. } => ApiError::new(StatusCode::CONFLICT, "no_breaker", message),
    }
}
