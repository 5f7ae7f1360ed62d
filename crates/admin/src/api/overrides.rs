//! `/v1/overrides`: limits of single clients that replace the limit of a rule.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::{Limit, Spec, TimeSpan, Timestamp};
use tidegate_policy::{ClientName, duration, span_text};
use tidegate_store::durable::{OverrideKey, OverrideRecord};

use super::{clients, reason, remaining, seconds, until};
use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

/// The body of a request that adds an override.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddOverrideRequest {
    client: String,
    rule: String,
    requests: u64,
    /// Default: that of the rule.
    window: Option<String>,
    /// Default: that of the rule.
    algorithm: Option<String>,
    burst: Option<u64>,
    #[serde(rename = "for")]
    duration: Option<String>,
    #[serde(default)]
    reason: String,
}

/// The body of a request that removes an override.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveOverrideRequest {
    client: String,
    rule: String,
}

/// An override in a response.
#[derive(Serialize)]
pub(super) struct OverrideView {
    client: ClientName,
    rule: String,
    requests: u64,
    window: String,
    algorithm: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    since: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<String>,
}

impl OverrideView {
    pub(super) fn new(key: &OverrideKey, replacement: &OverrideRecord, now: Timestamp) -> Self {
        Self {
            client: ClientName::from_key(&key.client),
            rule: key.rule.clone(),
            requests: replacement.spec.requests,
            window: span_text(replacement.spec.window),
            algorithm: replacement.algorithm.name(),
            burst: replacement.spec.burst,
            reason: replacement.reason.clone(),
            since: seconds(replacement.since),
            until: replacement.until.map(seconds),
            left: replacement.until.map(|until| remaining(until, now)),
        }
    }
}

pub(super) async fn list<R: Backend>(server: &AdminServer<R>) -> ApiResponse {
    let now = server.state.now();
    let all = server.state.overrides().await;
    let all: Vec<_> = all.iter().map(|(key, replacement)| OverrideView::new(key, replacement, now)).collect();
    response::json(StatusCode::OK, &json!({ "overrides": all }))
}

pub(super) async fn add<R: Backend>(
    server: &AdminServer<R>,
    request: AddOverrideRequest,
) -> Result<ApiResponse, ApiError> {
    let active = server.backend.limiter().policy();
    let plan = active.matcher.plan();
    let rule = clients::rule(plan, &request.rule)?;
    let algorithm = match &request.algorithm {
        Some(name) => {
            name.parse().map_err(|error| ApiError::invalid_field("algorithm", format!("{error}")))?
        }
        None => rule.algorithm(),
    };
    let window = match &request.window {
        Some(text) => window(text)?,
        None => rule.window,
    };
    let spec = Spec { burst: request.burst, ..Spec::new(request.requests, window) };
    Limit::new(algorithm, spec).map_err(|error| ApiError::invalid_field("requests", error.to_string()))?;
    let client = clients::key(server, plan, &request.client).await?;
    let counters = clients::counters(&active, &[rule], &client)?;
    let Some((rule, client)) = counters.into_iter().next() else {
        return Err(ApiError::invalid_field("client", "the rule does not count this client"));
    };
    let now = server.state.now();
    let until = until(request.duration.as_deref(), now)?;
    let key = OverrideKey { rule: rule.name.clone(), client };
    let replacement = OverrideRecord { algorithm, spec, reason: reason(request.reason)?, since: now, until };
    let view = OverrideView::new(&key, &replacement, now);
    let is_new = server.state.override_limit(key, replacement).await?;
    let OverrideView { client, rule, requests, window, .. } = &view;
    let client = client.to_string();
    let message = format!("override added: {client} under {rule}: {requests} per {window}");
    server.backend.log_event("override_added", &message, &client);
    Ok(response::json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &view))
}

fn window(text: &str) -> Result<TimeSpan, ApiError> {
    duration(text).map_err(|error| {
        ApiError::invalid_field("window", format!("invalid duration: {error}"))
            .hint("use a duration such as 1s, 1m, 1h or 1d")
    })
}

pub(super) async fn remove<R: Backend>(
    server: &AdminServer<R>,
    request: RemoveOverrideRequest,
) -> Result<ApiResponse, ApiError> {
    let client: ClientName =
        request.client.parse().map_err(|error| ApiError::invalid_field("client", format!("{error}")))?;
    // The client is given by its key, or as the list shows it.
    let active = server.backend.limiter().policy();
    let full_key = client.key(&active.matcher.plan().identities);
    let all = server.state.overrides().await;
    let found = all.into_iter().map(|(key, _)| key).find(|key| {
        key.rule == request.rule
            && full_key.as_ref().map_or_else(|| client.names(&key.client), |full| *full == key.client)
    });
    let missing = || {
        ApiError::new(
            StatusCode::NOT_FOUND,
            "no_override",
            format!("{client} has no override under this rule"),
        )
        .hint("run `tidegate override` or GET /v1/overrides to list all overrides")
    };
    let key = found.ok_or_else(missing)?;
    let rule = key.rule.clone();
    if !server.state.remove_override(key).await? {
        return Err(missing());
    }
    let message = format!("override removed: {client} under {rule}");
    server.backend.log_event("override_removed", &message, &client.to_string());
    Ok(response::json(StatusCode::OK, &json!({ "client": client, "rule": rule })))
}
