//! Endpoints for the whole gateway: `/readyz`, `/v1/status`, `/v1/reload`, `/v1/backup`.

use std::path::{Path, PathBuf};

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::Timestamp;
use tidegate_store::durable::BackupError;

use super::{remaining, seconds};
use crate::backend::{Backend, ReloadError, ReloadState};
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;
use crate::state::AdminStateError;

pub(super) fn ready<R: Backend>(server: &AdminServer<R>) -> Result<ApiResponse, ApiError> {
    if server.backend.is_ready() {
        Ok(response::json(StatusCode::OK, &json!({ "status": "ready" })))
    } else {
        Err(ApiError::unavailable("not_ready", "the gateway is shutting down"))
    }
}

pub(super) async fn status<R: Backend>(server: &AdminServer<R>) -> ApiResponse {
    let backend = &server.backend;
    let active = backend.limiter().policy();
    let plan = active.matcher.plan();
    let limits = &plan.rate_limits;
    let rates = limits.iter().map(|rule| json!({ "name": rule.name, "limit": rule.describe() }));
    let permits = limits.concurrent.iter().map(|rule| json!({ "name": rule.name, "limit": rule.describe() }));
    let rules: Vec<_> = rates.chain(permits).collect();
    response::json(
        StatusCode::OK,
        &json!({
            "version": env!("CARGO_PKG_VERSION"),
            "ready": backend.is_ready(),
            "policy": backend.source(),
            "reload": reload_view(&backend.reload_state(), server.state.now()),
            "connections": backend.connections(),
            "bans": { "operator": server.state.bans().await.len(), "policy": plan.bans.len() },
            "overrides": server.state.overrides().await.len(),
            "durable": server.state.path(),
            "store": backend.shared_store(),
            "rules": rules,
            "domains": backend.envoy_domains(),
            "upstreams": backend.upstreams(),
            "routes": backend.routes(),
        }),
    )
}

/// The result of the last reload, with times in Unix seconds.
fn reload_view(ReloadState { applied_at, failure }: &ReloadState, now: Timestamp) -> Value {
    let mut view = json!({ "result": "applied", "applied_at": seconds(*applied_at) });
    if let Some((error, failed_at)) = failure {
        view["result"] = match error {
            ReloadError::Invalid { .. } => "invalid".into(),
            ReloadError::Refused { .. } => "refused".into(),
        };
        view["reason"] = error.to_string().into();
        view["failed_at"] = seconds(*failed_at).into();
        view["failed"] = remaining(now, *failed_at).into();
    }
    view
}

/// The body of a reload request.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadBody {
    #[serde(default)]
    force: bool,
}

/// Reads the policy again.
pub(super) async fn reload<R: Backend>(
    server: &AdminServer<R>,
    body: &ReloadBody,
) -> Result<ApiResponse, ApiError> {
    let reloaded = server.backend.reload(body.force).await.map_err(|error| match error {
        ReloadError::Invalid { reason } => {
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_policy", reason)
                .hint("the old policy stays active; fix the file and validate it with `tidegate check`")
        }
        ReloadError::Refused { reason } => ApiError::new(StatusCode::CONFLICT, "reload_refused", reason)
            .hint("the old policy stays active; if the loss is intended, run `tidegate reload --force`"),
    })?;
    Ok(response::json(StatusCode::OK, &json!({ "changes": reloaded.changes, "warnings": reloaded.warnings })))
}

/// The body of a backup request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupRequest {
    path: PathBuf,
}

pub(super) async fn back_up<R: Backend>(
    server: &AdminServer<R>,
    request: BackupRequest,
) -> Result<ApiResponse, ApiError> {
    let folder = server.state.path().and_then(Path::parent).unwrap_or(Path::new(""));
    // A relative path is relative to the folder of the durable file.
    let path = folder.join(request.path);
    match server.state.back_up(&path).await {
        Ok(()) => Ok(response::json(StatusCode::CREATED, &json!({ "path": path }))),
        Err(BackupError::Durable(error)) => Err(AdminStateError::from(error).into()),
        Err(error @ BackupError::Exists { .. }) => {
            let error = ApiError::new(StatusCode::CONFLICT, "file_exists", error.to_string());
            Err(error.hint("choose another path; a backup does not replace a file"))
        }
        Err(error @ BackupError::Write { .. }) => {
            let error = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "not_written", error.to_string());
            Err(error.hint("choose an existing folder to which the user of the gateway can write"))
        }
    }
}
