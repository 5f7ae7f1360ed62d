//! `/v1/clients/NAME`: one client's counters, lock-outs, bans and overrides.

use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use tidegate_core::{Check, CounterKey, TimeSpan, Timestamp};
use tidegate_policy::{
    ActivePolicy, BanSource, ClientName, Exclusion, Rule, RuleClient, RuntimeData, span_text,
};
use tidegate_store::{PenaltyEntry, Store};

use super::overrides::OverrideView;
use super::{clients, remaining, store_unavailable};
use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

/// A counter of the client.
#[derive(Serialize)]
struct CounterView {
    rule: String,
    /// The client as the rule counts it.
    counter: ClientName,
    /// The limit of the rule; an override replaces it.
    limit: String,
    mode: String,
    remaining: u64,
    /// The seconds until the counter is as if it had never been used.
    reset_after: u64,
    /// The seconds until a request fits, if none does now.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
}

/// The requests in progress of the client under a rule.
#[derive(Serialize)]
struct PermitsView {
    rule: String,
    counter: ClientName,
    /// The most of all nodes, or of this one.
    limit: u32,
    /// Of this node.
    in_use: u32,
}

/// A lock-out of the client, alone or together with other identities.
#[derive(Serialize)]
struct LockOutView {
    client: ClientName,
    rule: String,
    left: String,
    /// How many lock-outs there were in a row.
    number: u32,
}

/// Shows everything that applies to a client.
pub(super) async fn show<R: Backend>(
    server: &AdminServer<R>,
    encoded: &str,
) -> Result<ApiResponse, ApiError> {
    let text = decoded(encoded).ok_or_else(|| {
        ApiError::invalid_field("client", "the name in the path is not percent-encoded UTF-8")
    })?;
    let limiter = server.backend.limiter();
    let active = limiter.policy();
    let plan = active.matcher.plan();
    let key = clients::key(server, plan, &text).await?;
    let name = ClientName::from_key(&key);
    let now = server.state.now();
    let counters = counters(server, &active, &key, now).await?;
    let concurrent = plan.rate_limits.concurrent.iter().filter_map(|rule| {
        let key = active.named_permits(rule, &key)?;
        let in_use = limiter.permits().in_use_by(CounterKey::new(rule.id, &key));
        let counter = ClientName::from_key(&key);
        Some(PermitsView { rule: rule.name.clone(), counter, limit: rule.concurrent, in_use })
    });
    let concurrent: Vec<_> = concurrent.collect();
    let lock_outs = server.state.locked_out().into_iter().filter(|entry| name.is_part_of(&entry.key.client));
    let lock_outs: Vec<_> = lock_outs.map(|entry| LockOutView::new(&entry, &active, now)).collect();
    let overrides = server.state.overrides().await;
    let overrides = overrides.iter().filter(|(overridden, _)| name.is_part_of(&overridden.client));
    let overrides: Vec<_> =
        overrides.map(|(key, replacement)| OverrideView::new(key, replacement, now)).collect();
    let mut body = json!({
        "client": name,
        "rules": counters,
        "concurrent": concurrent,
        "lock_outs": lock_outs,
        "overrides": overrides,
    });
    let client = text.parse().ok().and_then(|name: ClientName| RuleClient::new(&name, &plan.identities));
    let client = client.unwrap_or_else(|| RuleClient::from_key(&key));
    let bans = limiter.bans();
    let runtime = RuntimeData { directory: active.directory.as_deref(), bans: Some(&bans) };
    match active.matcher.exclusion(&client, runtime, now) {
        Some(Exclusion::Banned(BanSource::Policy(network))) => {
            body["banned"] = json!({ "subject": network.to_string(), "source": "policy" });
        }
        Some(Exclusion::Banned(BanSource::Operator(ban))) => {
            body["banned"] = json!({
                "subject": ban.subject.to_string(),
                "source": "operator",
                "reason": ban.reason,
                "left": ban.until.map(|until| remaining(until, now)),
            });
        }
        Some(Exclusion::Banned(BanSource::NotAllowed)) => {
            body["banned"] = json!({ "subject": name, "source": "policy", "reason": "not in `allow`" });
        }
        Some(Exclusion::Exempt(_)) => body["exempt"] = true.into(),
        None => {}
    }
    if counters.is_empty() && concurrent.is_empty() {
        let rules: Vec<_> = plan.rate_limits.iter().collect();
        body["hint"] = clients::counted(&active, &rules).into();
    }
    Ok(response::json(StatusCode::OK, &body))
}

/// The state of the counters that the rules have for the client.
async fn counters<R: Backend>(
    server: &AdminServer<R>,
    active: &ActivePolicy,
    key: &[u8],
    now: Timestamp,
) -> Result<Vec<CounterView>, ApiError> {
    let rules = active.matcher.plan().rate_limits.iter();
    let counters: Vec<(&Rule, Vec<u8>)> =
        rules.filter_map(|rule| Some((rule, active.named_counter(rule, key)?))).collect();
    let checks: Vec<_> =
        counters.iter().map(|(rule, key)| Check::new(CounterKey::new(rule.id, key), &rule.limit)).collect();
    let peeked = server
        .backend
        .limiter()
        .store()
        .peek(&checks, now)
        .await
        .map_err(|error| store_unavailable(&error))?;
    let seconds = TimeSpan::as_secs_ceil;
    let views = counters.iter().zip(&peeked.outcomes).map(|((rule, key), outcome)| CounterView {
        rule: rule.name.clone(),
        counter: ClientName::from_key(key),
        limit: rule.describe(),
        mode: rule.mode.to_string(),
        remaining: outcome.remaining,
        reset_after: seconds(outcome.reset_after),
        retry_after: outcome.verdict.retry_after().map(seconds),
    });
    Ok(views.collect())
}

impl LockOutView {
    fn new(PenaltyEntry { key, record, .. }: &PenaltyEntry, active: &ActivePolicy, now: Timestamp) -> Self {
        let rule = active.matcher.plan().rate_limits.iter().find(|rule| rule.id == key.rule);
        Self {
            client: ClientName::from_key(&key.client),
            rule: rule.map_or_else(|| super::bans::REMOVED_RULE.to_owned(), |rule| rule.name.clone()),
            left: span_text(TimeSpan::from_secs(record.locked_until.since(now).as_secs_ceil())),
            number: record.level,
        }
    }
}

/// Undoes percent-encoding; `None` if it is invalid.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = behind;
            continue;
        }
        let (digits, behind) = behind.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = behind;
    }
    String::from_utf8(bytes).ok()
}
