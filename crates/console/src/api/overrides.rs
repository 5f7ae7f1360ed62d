//! `/v1/overrides`: another limit for one client under one rule.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::{Limit, Span, Spec, Timestamp};
use tidegate_policy::{ClientName, duration, span_text};
use tidegate_store::durable::{OverrideKey, OverrideRecord};

use super::{clients, left, reason, seconds, until};
use crate::answer::{self, Answer, Refusal};
use crate::running::Running;
use crate::server::Console;

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

/// Which to end.
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
    fn of(key: &OverrideKey, instead: &OverrideRecord, now: Timestamp) -> Self {
        Self {
            client: ClientName::of(&key.client),
            rule: key.rule.clone(),
            requests: instead.spec.requests,
            window: span_text(instead.spec.window),
            algorithm: instead.algorithm.name(),
            burst: instead.spec.burst,
            reason: instead.reason.clone(),
            since: seconds(instead.since),
            until: instead.until.map(seconds),
            left: instead.until.map(|until| left(until, now)),
        }
    }
}

pub(super) async fn list<R: Running>(console: &Console<R>) -> Answer {
    let now = console.desk.now();
    let all = console.desk.overrides().await;
    let all: Vec<_> = all.iter().map(|(key, instead)| Told::of(key, instead, now)).collect();
    answer::json(StatusCode::OK, &json!({ "overrides": all }))
}

pub(super) async fn add<R: Running>(console: &Console<R>, asked: NewOverride) -> Result<Answer, Refusal> {
    let active = console.running.limiter().policy();
    let plan = active.matcher.plan();
    let rule = clients::rule(plan, &asked.rule)?;
    let algorithm = match &asked.algorithm {
        Some(name) => name.parse().map_err(|error| Refusal::bad("algorithm", format!("{error}")))?,
        None => rule.algorithm(),
    };
    let window = match &asked.window {
        Some(text) => window(text)?,
        None => rule.window,
    };
    let spec = Spec { burst: asked.burst, ..Spec::new(asked.requests, window) };
    Limit::new(algorithm, spec).map_err(|error| Refusal::bad("requests", error.to_string()))?;
    let client = clients::key(console, plan, &asked.client)?;
    let now = console.desk.now();
    let until = until(asked.lasting.as_deref(), now)?;
    let key = OverrideKey { rule: rule.name.clone(), client };
    let instead = OverrideRecord { algorithm, spec, reason: reason(asked.reason)?, since: now, until };
    let told = Told::of(&key, &instead, now);
    let is_new = console.desk.override_limit(key, instead).await?;
    let Told { client, rule, requests, window, .. } = &told;
    let client = client.to_string();
    let message = format!("{client} may have {requests} per {window} under {rule}");
    console.running.tell("override_added", &message, &client);
    Ok(answer::json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &told))
}

fn window(text: &str) -> Result<Span, Refusal> {
    duration(text).map_err(|error| {
        Refusal::bad("window", format!("the duration {error}")).hint("write it as 1s, 1m, 1h or 1d")
    })
}

pub(super) async fn remove<R: Running>(console: &Console<R>, asked: OldOverride) -> Result<Answer, Refusal> {
    let wanted: ClientName =
        asked.client.parse().map_err(|error| Refusal::bad("client", format!("{error}")))?;
    // By its key, or as it is shown in the list.
    let active = console.running.limiter().policy();
    let whole = wanted.key(&active.matcher.plan().identities);
    let all = console.desk.overrides().await;
    let found = all.into_iter().map(|(key, _)| key).find(|key| {
        key.rule == asked.rule
            && whole.as_ref().map_or_else(|| wanted.names(&key.client), |whole| *whole == key.client)
    });
    let missing = || {
        Refusal::new(
            StatusCode::NOT_FOUND,
            "no_override",
            format!("{wanted} has no override under that rule"),
        )
        .hint("/v1/overrides lists all of them")
    };
    let key = found.ok_or_else(missing)?;
    let rule = key.rule.clone();
    if !console.desk.end_override(key).await? {
        return Err(missing());
    }
    let client = wanted.to_string();
    console.running.tell(
        "override_removed",
        &format!("{client} is limited by {rule} as others are"),
        &client,
    );
    Ok(answer::json(StatusCode::OK, &json!({ "client": wanted, "rule": rule })))
}
