//! `/v1/bans`: who is shut out, by operators, by the policy, or by the penalty of a rule.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::Timestamp;
use tidegate_policy::{Ban, ClientName, Plan, Subject};
use tidegate_store::PenaltyEntry;

use super::{left, reason, seconds, until};
use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

/// A new ban.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewBan {
    subject: String,
    #[serde(rename = "for")]
    lasting: Option<String>,
    #[serde(default)]
    reason: String,
}

/// Whom to let in again.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OldBan {
    subject: String,
}

/// A ban as it is told.
#[derive(Serialize)]
struct Told {
    subject: String,
    /// `ban`: 403. `penalty`: 429 until it ends.
    kind: &'static str,
    /// Who made it: `policy`, `operator`, or a rule by its name.
    source: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    /// Unix seconds; without end where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    /// The same in words, from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<String>,
}

impl Told {
    fn operator(ban: &Ban, now: Timestamp) -> Self {
        Self {
            subject: ban.subject.to_string(),
            kind: "ban",
            source: "operator".to_owned(),
            reason: ban.reason.clone(),
            since: Some(seconds(ban.since)),
            until: ban.until.map(seconds),
            left: ban.until.map(|until| left(until, now)),
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
            source: rule.map_or_else(|| "a rule that is gone".to_owned(), |rule| rule.name.clone()),
            reason: format!("lock-out number {}", record.level),
            since: Some(seconds(record.locked_until - record.locked_for)),
            until: Some(record.locked_until.as_secs_ceil()),
            left: Some(left(record.locked_until, now)),
        }
    }
}

pub(super) async fn list<R: Backend>(server: &AdminServer<R>) -> ApiResponse {
    let now = server.state.now();
    let active = server.backend.limiter().policy();
    let plan = active.matcher.plan();
    let written = plan.bans.iter().map(|net| Told::policy(&Subject::Network(*net)));
    let made = server.state.bans().await;
    let made = made.iter().map(|ban| Told::operator(ban, now));
    let locked_out = server.state.locked_out();
    let locked_out = locked_out.iter().map(|penalised| Told::penalty(penalised, plan, now));
    let bans: Vec<_> = made.chain(locked_out).chain(written).collect();
    response::json(StatusCode::OK, &json!({ "bans": bans }))
}

pub(super) async fn add<R: Backend>(server: &AdminServer<R>, asked: NewBan) -> Result<ApiResponse, ApiError> {
    let now = server.state.now();
    let subject = subject(server, &asked.subject)?;
    let until = until(asked.lasting.as_deref(), now)?;
    let ban = Ban { subject, reason: reason(asked.reason)?, since: now, until };
    let told = Told::operator(&ban, now);
    let is_new = server.state.ban(ban).await?;
    let until = told.left.as_ref().map_or_else(String::new, |left| format!(" for {left}"));
    let because = if told.reason.is_empty() { String::new() } else { format!(": {}", told.reason) };
    let message = format!("{} is banned{until}{because}", told.subject);
    server.backend.tell("ban_added", &message, &told.subject);
    Ok(response::json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &told))
}

pub(super) async fn remove<R: Backend>(
    server: &AdminServer<R>,
    asked: OldBan,
) -> Result<ApiResponse, ApiError> {
    let subject = subject(server, &asked.subject)?;
    let shown = subject.to_string();
    let in_policy = matches!(&subject, Subject::Network(net)
        if server.backend.limiter().policy().matcher.plan().bans.contains(net));
    let penalties = server.state.forgive(&subject);
    let was_banned = server.state.unban(subject).await?;
    if was_banned || penalties > 0 {
        server.backend.tell("ban_removed", &format!("{shown} is let in again"), &shown);
        let told = json!({ "subject": shown, "banned": was_banned, "penalties": penalties });
        return Ok(response::json(StatusCode::OK, &told));
    }
    if in_policy {
        let what = format!("{shown} is banned by the policy");
        return Err(ApiError::new(StatusCode::CONFLICT, "in_policy", what)
            .hint("take it out of `bans` there; a changed policy is read by itself"));
    }
    Err(ApiError::new(StatusCode::NOT_FOUND, "not_banned", format!("nobody banned {shown}"))
        .hint("/v1/bans lists all bans; name one as it stands there"))
}

fn subject<R: Backend>(server: &AdminServer<R>, text: &str) -> Result<Subject, ApiError> {
    let prefix = server.backend.limiter().policy().matcher.plan().clients.ipv6_prefix;
    Subject::parse(text, prefix).map_err(|error| ApiError::bad("subject", error.to_string()))
}
