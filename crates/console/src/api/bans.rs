//! `/v1/bans`: whom nobody answers but with 403.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::Timestamp;
use tidegate_policy::{Ban, Subject};

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
    /// Who made it: `policy` or `operator`.
    source: &'static str,
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
            source: "operator",
            reason: ban.reason.clone(),
            since: Some(seconds(ban.since)),
            until: ban.until.map(seconds),
            left: ban.until.map(|until| left(until, now)),
        }
    }

    fn policy(subject: &Subject) -> Self {
        Self {
            subject: subject.to_string(),
            source: "policy",
            reason: String::new(),
            since: None,
            until: None,
            left: None,
        }
    }
}

pub(super) async fn list<R: Running>(console: &Console<R>) -> Answer {
    let now = console.desk.now();
    let active = console.running.active();
    let written = active.matcher.plan().bans.iter().map(|net| Told::policy(&Subject::Network(*net)));
    let made = console.desk.bans().await;
    let made = made.iter().map(|ban| Told::operator(ban, now));
    let bans: Vec<_> = made.chain(written).collect();
    answer::json(StatusCode::OK, &json!({ "bans": bans }))
}

pub(super) async fn add<R: Running>(console: &Console<R>, asked: NewBan) -> Result<Answer, Refusal> {
    let now = console.desk.now();
    let subject = subject(console, &asked.subject)?;
    let until = until(asked.lasting.as_deref(), now)?;
    let ban = Ban { subject, reason: reason(asked.reason)?, since: now, until };
    let told = Told::operator(&ban, now);
    let is_new = console.desk.ban(ban).await?;
    Ok(answer::json(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &told))
}

pub(super) async fn remove<R: Running>(console: &Console<R>, asked: OldBan) -> Result<Answer, Refusal> {
    let subject = subject(console, &asked.subject)?;
    let shown = subject.to_string();
    let in_policy = matches!(&subject, Subject::Network(net)
        if console.running.active().matcher.plan().bans.contains(net));
    if console.desk.unban(subject).await? {
        return Ok(answer::json(StatusCode::OK, &json!({ "subject": shown })));
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
    let prefix = console.running.active().matcher.plan().clients.ipv6_prefix;
    Subject::parse(text, prefix).map_err(|error| Refusal::bad("subject", error.to_string()))
}
