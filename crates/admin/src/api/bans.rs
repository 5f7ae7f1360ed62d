//! `/v1/bans`: bans by operators and by the policy, and penalties by rules.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::Timestamp;
use tidegate_policy::{Ban, ClientName, Plan, Subject};
use tidegate_store::PenaltyEntry;

use super::{reason, remaining, seconds, until};
use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

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
            source: rule.map_or_else(|| "(removed rule)".to_owned(), |rule| rule.name.clone()),
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

pub(super) async fn remove<R: Backend>(
    server: &AdminServer<R>,
    request: RemoveBanRequest,
) -> Result<ApiResponse, ApiError> {
    let subject = subject(server, &request.subject)?;
    let name = subject.to_string();
    let in_policy = matches!(&subject, Subject::Network(net)
        if server.backend.limiter().policy().matcher.plan().bans.contains(net));
    let penalties = server.state.lift_penalties(&subject).await;
    let was_banned = server.state.unban(subject).await?;
    if was_banned || penalties > 0 {
        server.backend.log_event("ban_removed", &format!("ban removed: {name}"), &name);
        let body = json!({ "subject": name, "banned": was_banned, "penalties": penalties });
        return Ok(response::json(StatusCode::OK, &body));
    }
    if in_policy {
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
