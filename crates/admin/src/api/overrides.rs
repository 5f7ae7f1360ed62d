//! `/v1/overrides`: another limit for one client under one rule.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::{Limit, Spec, TimeSpan, Timestamp};
use tidegate_policy::{ClientName, duration, span_text};
use tidegate_store::durable::{OverrideKey, OverrideRecord};

use super::{clients, left, reason, seconds, until};
use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

/// A new override.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewOverride {
    client: String,
    rule: String,
    requests: u64,
    /// The rule's own unless given.
    window: Option<String>,
    /// The rule's own unless given.
    algorithm: Option<String>,
    burst: Option<u64>,
    #[serde(rename = "for")]
    lasting: Option<String>,
    #[serde(default)]
    reason: String,
}

/// LogSampling to end.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OldOverride {
    client: String,
    rule: String,
}

/// An override as it is told.
#[derive(Serialize)]
struct Told {
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

impl Told {
    fn of(key: &OverrideKey, replacement: &OverrideRecord, now: Timestamp) -> Self {
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
            left: replacement.until.map(|until| left(until, now)),
        }
    }
}

pub(super) async fn list<R: Backend>(server: &AdminServer<R>) -> ApiResponse {
    let now = server.state.now();
    let all = server.state.overrides().await;
    let all: Vec<_> = all.iter().map(|(key, replacement)| Told::of(key, replacement, now)).collect();
    response::json(StatusCode::OK, &json!({ "overrides": all }))
}

pub(super) async fn add<R: Backend>(
    server: &AdminServer<R>,
    asked: NewOverride,
) -> Result<ApiResponse, ApiError> {
    let active = server.backend.limiter().policy();
    let plan = active.matcher.plan();
    let rule = clients::rule(plan, &asked.rule)?;
    let algorithm = match &asked.algorithm {
        Some(name) => name.parse().map_err(|error| ApiError::bad("algorithm", format!("{error}")))?,
        None => rule.algorithm(),
    };
    let window = match &asked.window {
        Some(text) => window(text)?,
        None => rule.window,
    };
    let spec = Spec { burst: asked.burst, ..Spec::new(asked.requests, window) };
    Limit::new(algorithm, spec).map_err(|error| ApiError::bad("requests", error.to_string()))?;
    let client = clients::key(server, plan, &asked.client)?;
    let now = server.state.now();
    let until = until(asked.lasting.as_deref(), now)?;
    let key = OverrideKey { rule: rule.name.clone(), client };
    let replacement = OverrideRecord { algorithm, spec, reason: reason(asked.reason)?, since: now, until };
    let told = Told::of(&key, &replacement, now);
    let is_new = server.state.override_limit(key, replacement).await?;
    let Told { client, rule, requests, window, .. } = &told;
    let client = client.to_string();
    let message = format!("{client} may have {requests} per {window} under {rule}");
    server.backend.tell("override_added", &message, &client);
    Ok(response::json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &told))
}

fn window(text: &str) -> Result<TimeSpan, ApiError> {
    duration(text).map_err(|error| {
        ApiError::bad("window", format!("the duration {error}")).hint("write it as 1s, 1m, 1h or 1d")
    })
}

pub(super) async fn remove<R: Backend>(
    server: &AdminServer<R>,
    asked: OldOverride,
) -> Result<ApiResponse, ApiError> {
    let wanted: ClientName =
        asked.client.parse().map_err(|error| ApiError::bad("client", format!("{error}")))?;
    // By its key, or as it is shown in the list.
    let active = server.backend.limiter().policy();
    let whole = wanted.key(&active.matcher.plan().identities);
    let all = server.state.overrides().await;
    let found = all.into_iter().map(|(key, _)| key).find(|key| {
        key.rule == asked.rule
            && whole.as_ref().map_or_else(|| wanted.names(&key.client), |whole| *whole == key.client)
    });
    let missing = || {
        ApiError::new(
            StatusCode::NOT_FOUND,
            "no_override",
            format!("{wanted} has no override under that rule"),
        )
        .hint("/v1/overrides lists all of them")
    };
    let key = found.ok_or_else(missing)?;
    let rule = key.rule.clone();
    if !server.state.end_override(key).await? {
        return Err(missing());
    }
    let client = wanted.to_string();
    server.backend.tell("override_removed", &format!("{client} is limited by {rule} as others are"), &client);
    Ok(response::json(StatusCode::OK, &json!({ "client": wanted, "rule": rule })))
}
