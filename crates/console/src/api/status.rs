//! The gateway as a whole: `/readyz`, `/v1/status`, `/v1/reload`, `/v1/backup`.

use std::path::{Path, PathBuf};

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use tidegate_store::durable::BackupError;

use crate::answer::{self, Answer, Refusal};
use crate::desk::DeskError;
use crate::running::Running;
use crate::server::Console;

pub(super) fn ready<R: Running>(console: &Console<R>) -> Result<Answer, Refusal> {
    if console.running.is_ready() {
        Ok(answer::json(StatusCode::OK, &json!({ "status": "ready" })))
    } else {
        Err(Refusal::unavailable("not_ready", "it takes no more requests"))
    }
}

pub(super) async fn status<R: Running>(console: &Console<R>) -> Answer {
    let running = &console.running;
    let active = running.limiter().policy();
    let plan = active.matcher.plan();
    let rules: Vec<_> =
        plan.rate_limits.iter().map(|rule| json!({ "name": rule.name, "limit": rule.words() })).collect();
    let upstreams: Vec<_> = plan
        .upstreams
        .iter()
        .map(|upstream| json!({ "name": upstream.name, "servers": upstream.servers }))
        .collect();
    answer::json(
        StatusCode::OK,
        &json!({
            "version": env!("CARGO_PKG_VERSION"),
            "ready": running.is_ready(),
            "policy": running.source(),
            "connections": running.connections(),
            "bans": { "operator": console.desk.bans().await.len(), "policy": plan.bans.len() },
            "overrides": console.desk.overrides().await.len(),
            "durable": console.desk.path(),
            "rules": rules,
            "upstreams": upstreams,
        }),
    )
}

/// Reads the policy again.
pub(super) async fn reload<R: Running>(console: &Console<R>) -> Result<Answer, Refusal> {
    let reloaded = console.running.reload().await.map_err(|error| {
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_policy", error.to_string())
            .hint("the old policy stays in force; mend the file, and try it with `tidegate check`")
    })?;
    Ok(answer::json(StatusCode::OK, &json!({ "changes": reloaded.changes, "warnings": reloaded.warnings })))
}

/// Where to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Backup {
    path: PathBuf,
}

pub(super) async fn back_up<R: Running>(console: &Console<R>, asked: Backup) -> Result<Answer, Refusal> {
    let folder = console.desk.path().and_then(Path::parent).unwrap_or(Path::new(""));
    // From the folder of the original; an absolute path stays as it is.
    let path = folder.join(asked.path);
    match console.desk.back_up(&path).await {
        Ok(()) => Ok(answer::json(StatusCode::CREATED, &json!({ "path": path }))),
        Err(BackupError::Durable(error)) => Err(DeskError::from(error).into()),
        Err(error @ BackupError::Exists { .. }) => {
            let refusal = Refusal::new(StatusCode::CONFLICT, "exists", error.to_string());
            Err(refusal.hint("a backup never replaces anything"))
        }
        Err(error @ BackupError::Write { .. }) => {
            let refusal = Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "not_written", error.to_string());
            Err(refusal.hint("the gateway writes it: name a folder that its user may write to"))
        }
    }
}
