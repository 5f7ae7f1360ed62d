//! `/v1/bans`: who is shut out, by operators, by the policy, or by the penalty of a rule.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::Timestamp;
use tidegate_policy::{Ban, ClientName, Plan, Subject};
use tidegate_store::Penalised;

use super::{left, reason, seconds, until};
use crate::answer::{self, Answer, Refusal};
use crate::running::Running;
use crate::server::Console;

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

    fn penalty(Penalised { key, record, .. }: &Penalised, plan: &Plan, now: Timestamp) -> Self {
        let rule = plan.rate_limits.iter().find(|rule| rule.id == key.rule);
        Self {
            subject: ClientName::of(&key.client).to_string(),
            kind: "penalty",
            source: rule.map_or_else(|| "a rule that is gone".to_owned(), |rule| rule.name.clone()),
            reason: format!("lock-out number {}", record.level),
            since: Some(seconds(record.locked_until - record.locked_for)),
            until: Some(record.locked_until.as_secs_ceil()),
            left: Some(left(record.locked_until, now)),
        }
    }
}

pub(super) async fn list<R: Running>(console: &Console<R>) -> Answer {
    let now = console.desk.now();
    let active = console.running.limiter().policy();
    let plan = active.matcher.plan();
    let written = plan.bans.iter().map(|net| Told::policy(&Subject::Network(*net)));
    let made = console.desk.bans().await;
    let made = made.iter().map(|ban| Told::operator(ban, now));
    let locked_out = console.desk.locked_out();
    let locked_out = locked_out.iter().map(|penalised| Told::penalty(penalised, plan, now));
    let bans: Vec<_> = made.chain(locked_out).chain(written).collect();
    answer::json(StatusCode::OK, &json!({ "bans": bans }))
}

pub(super) async fn add<R: Running>(console: &Console<R>, asked: NewBan) -> Result<Answer, Refusal> {
    let now = console.desk.now();
    let subject = subject(console, &asked.subject)?;
    let until = until(asked.lasting.as_deref(), now)?;
    let ban = Ban { subject, reason: reason(asked.reason)?, since: now, until };
    let told = Told::operator(&ban, now);
    let is_new = console.desk.ban(ban).await?;
    let until = told.left.as_ref().map_or_else(String::new, |left| format!(" for {left}"));
    let because = if told.reason.is_empty() { String::new() } else { format!(": {}", told.reason) };
    let message = format!("{} is banned{until}{because}", told.subject);
    console.running.tell("ban_added", &message, &told.subject);
    Ok(answer::json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &told))
}

pub(super) async fn remove<R: Running>(console: &Console<R>, asked: OldBan) -> Result<Answer, Refusal> {
    let subject = subject(console, &asked.subject)?;
    let shown = subject.to_string();
    let in_policy = matches!(&subject, Subject::Network(net)
        if console.running.limiter().policy().matcher.plan().bans.contains(net));
    let penalties = console.desk.forgive(&subject);
    let was_banned = console.desk.unban(subject).await?;
    if was_banned || penalties > 0 {
        console.running.tell("ban_removed", &format!("{shown} is let in again"), &shown);
        let told = json!({ "subject": shown, "banned": was_banned, "penalties": penalties });
        return Ok(answer::json(StatusCode::OK, &told));
    }
    if in_policy {
        let what = format!("{shown} is banned by the policy");
        return Err(Refusal::new(StatusCode::CONFLICT, "in_policy", what)
            .hint("take it out of `bans` there; a changed policy is read by itself"));
    }
    Err(Refusal::new(StatusCode::NOT_FOUND, "not_banned", format!("nobody banned {shown}"))
        .hint("/v1/bans lists all bans; name one as it stands there"))
}

fn subject<R: Running>(console: &Console<R>, text: &str) -> Result<Subject, Refusal> {
    let prefix = console.running.limiter().policy().matcher.plan().clients.ipv6_prefix;
    Subject::parse(text, prefix).map_err(|error| Refusal::bad("subject", error.to_string()))
}
