//! `/v1/bans`: bans by operators and by the policy, and penalties by rules.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::{Check, OwnedKey, TimeSpan, Timestamp};
use tidegate_policy::{Ban, ClientName, Plan, Subject};
use tidegate_store::{PenaltyEntry, Store};

use super::{reason, remaining, seconds, until};
use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

/// In place of the name of a rule that the policy no longer has.
pub(super) const REMOVED_RULE: &str = "(removed rule)";

/// The body of a request that adds a ban.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddBanRequest {
    subject: String,
    #[serde(rename = "for")]
    duration: Option<String>,
    #[serde(default)]
    reason: String,
}

/// The body of a request that removes a ban.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveBanRequest {
    subject: String,
}

/// A ban or a penalty in a response.
#[derive(Serialize)]
struct BanView {
    subject: String,
    /// `ban`: the client gets 403. `penalty`: the client gets 429 until the penalty ends.
    kind: &'static str,
    /// `policy`, `operator`, or the name of a rule.
    source: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    /// The end in Unix seconds; `None` if the ban has no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    /// The remaining time, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<String>,
}

impl BanView {
    fn operator(ban: &Ban, now: Timestamp) -> Self {
        Self {
            subject: ban.subject.to_string(),
            kind: "ban",
            source: "operator".to_owned(),
            reason: ban.reason.clone(),
            since: Some(seconds(ban.since)),
            until: ban.until.map(seconds),
            left: ban.until.map(|until| remaining(until, now)),
        }
    }

    fn policy(subject: &Subject) -> Self {
        Self {
            subject: subject.to_string(),
            kind: "ban",
            source: "policy".to_owned(),
            reason: String::new(),
            since: None,
            until: None,
            left: None,
        }
    }

    fn penalty(PenaltyEntry { key, record, .. }: &PenaltyEntry, plan: &Plan, now: Timestamp) -> Self {
        let rule = plan.rate_limits.iter().find(|rule| rule.id == key.rule);
        Self {
            subject: ClientName::from_key(&key.client).to_string(),
            kind: "penalty",
            source: rule.map_or_else(|| REMOVED_RULE.to_owned(), |rule| rule.name.clone()),
            reason: format!("lock-out number {}", record.level),
            since: Some(seconds(record.locked_until - record.locked_for)),
            until: Some(record.locked_until.as_secs_ceil()),
            left: Some(remaining(record.locked_until, now)),
        }
    }
}

pub(super) async fn list<R: Backend>(server: &AdminServer<R>) -> ApiResponse {
    let now = server.state.now();
    let active = server.backend.limiter().policy();
    let plan = active.matcher.plan();
    let by_policy = plan.bans.iter().map(|net| BanView::policy(&Subject::Network(*net)));
    let by_operators = server.state.bans().await;
    let by_operators = by_operators.iter().map(|ban| BanView::operator(ban, now));
    let penalties = server.state.locked_out();
    let penalties = penalties.iter().map(|penalty| BanView::penalty(penalty, plan, now));
    let bans: Vec<_> = by_operators.chain(penalties).chain(by_policy).collect();
    response::json(StatusCode::OK, &json!({ "bans": bans }))
}

pub(super) async fn add<R: Backend>(
    server: &AdminServer<R>,
    request: AddBanRequest,
) -> Result<ApiResponse, ApiError> {
    let now = server.state.now();
    let subject = subject(server, &request.subject)?;
    let until = until(request.duration.as_deref(), now)?;
    let ban = Ban { subject, reason: reason(request.reason)?, since: now, until };
    let view = BanView::operator(&ban, now);
    let is_new = server.state.ban(ban).await?;
    let duration = view.left.as_ref().map_or_else(String::new, |left| format!(" for {left}"));
    let reason = if view.reason.is_empty() { String::new() } else { format!(" (reason: {})", view.reason) };
    let message = format!("ban added: {}{duration}{reason}", view.subject);
    server.backend.log_event("ban_added", &message, &view.subject);
    Ok(response::json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &view))
}

/// A lock-out that an operator has ended, in a response.
#[derive(Serialize)]
struct EndedLockOut {
    client: ClientName,
    rule: String,
    /// The seconds for which the counter still rejects the client, if it does: the lock-out is not what it counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    full_for: Option<u64>,
}

impl EndedLockOut {
    async fn new<R: Backend>(server: &AdminServer<R>, plan: &Plan, key: &OwnedKey) -> Self {
        let client = ClientName::from_key(&key.client);
        let Some(rule) = plan.rate_limits.iter().find(|rule| rule.id == key.rule) else {
            return Self { client, rule: REMOVED_RULE.to_owned(), full_for: None };
        };
        let limiter = server.backend.limiter();
        let check = Check::new(key.as_key(), &rule.limit);
        // If the store fails, the state of the counter is not known, and nothing is said about it.
        let peeked = limiter.store().peek(&[check], limiter.clock().now()).await.ok();
        let full_for = peeked.and_then(|decision| decision.verdict.retry_after()).map(TimeSpan::as_secs_ceil);
        Self { client, rule: rule.name.clone(), full_for }
    }
}

pub(super) async fn remove<R: Backend>(
    server: &AdminServer<R>,
    request: RemoveBanRequest,
) -> Result<ApiResponse, ApiError> {
    let active = server.backend.limiter().policy();
    let plan = active.matcher.plan();
    // A client with several identities can be locked out, but not banned.
    let combination = request.subject.parse::<ClientName>().ok().filter(|name| name.kind().is_none());
    let (name, was_banned, ended) = if let Some(client) = combination {
        let ended = server.state.end_lock_outs(|key| client.names(key)).await;
        (client.to_string(), false, ended)
    } else {
        let subject = subject(server, &request.subject)?;
        let ended = server.state.end_lock_outs(|key| subject.names(key)).await;
        (subject.to_string(), server.state.unban(subject).await?, ended)
    };
    if was_banned || !ended.is_empty() {
        let what = if was_banned { "ban removed" } else { "lock-out ended" };
        server.backend.log_event("ban_removed", &format!("{what}: {name}"), &name);
        let mut lock_outs = Vec::with_capacity(ended.len());
        for key in &ended {
            lock_outs.push(EndedLockOut::new(server, plan, key).await);
        }
        let body = json!({
            "subject": name, "banned": was_banned, "penalties": ended.len(), "lock_outs": lock_outs,
        });
        return Ok(response::json(StatusCode::OK, &body));
    }
    if plan.bans.iter().any(|net| Subject::Network(*net).to_string() == name) {
        let message = format!("{name} is banned by the policy");
        return Err(ApiError::new(StatusCode::CONFLICT, "in_policy", message).hint(
            "remove it from `bans` in the policy; changes of the policy file are picked up automatically",
        ));
    }
    Err(ApiError::new(StatusCode::NOT_FOUND, "not_banned", format!("{name} is not banned"))
        .hint("run `tidegate bans` or GET /v1/bans to list all bans"))
}

fn subject<R: Backend>(server: &AdminServer<R>, text: &str) -> Result<Subject, ApiError> {
    let prefix = server.backend.limiter().policy().matcher.plan().clients.ipv6_prefix;
    Subject::parse(text, prefix).map_err(|error| ApiError::invalid_field("subject", error.to_string()))
}
