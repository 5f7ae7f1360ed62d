//! Clients and their counters: who they are, `/v1/reset`, `/v1/top`.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::CounterKey;
use tidegate_policy::{ClientName, Plan, Rule};
use tidegate_store::Store;

use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

/// What to forget.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reset {
    client: String,
    rule: Option<String>,
}

/// Forgets what a client has spent, under one rule or all.
pub(super) async fn reset<R: Backend>(
    server: &AdminServer<R>,
    asked: Reset,
) -> Result<ApiResponse, ApiError> {
    let active = server.backend.limiter().policy();
    let plan = active.matcher.plan();
    let rules: Vec<_> = match &asked.rule {
        Some(name) => vec![rule(plan, name)?],
        None => plan.rate_limits.iter().collect(),
    };
    let key = key(server, plan, &asked.client)?;
    for rule in &rules {
        let forgotten = server.backend.limiter().store().reset(CounterKey::new(rule.id, &key)).await;
        forgotten.map_err(|error| ApiError::unavailable("store", error.to_string()))?;
    }
    let names: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).collect();
    let client = ClientName::from_key(&key);
    let message = format!("{client} begins anew under {}", names.join(", "));
    server.backend.tell("counters_reset", &message, &client.to_string());
    Ok(response::json(StatusCode::OK, &json!({ "client": client, "rules": names })))
}

/// A client among the heaviest.
#[derive(Serialize)]
struct Heavy {
    client: ClientName,
    allowed: u64,
    refused: u64,
}

/// The heaviest clients of each rule.
pub(super) fn top<R: Backend>(server: &AdminServer<R>) -> ApiResponse {
    let active = server.backend.limiter().policy();
    let rules: Vec<_> = active.matcher.plan().rate_limits.iter().collect();
    let mut heaviest: BTreeMap<usize, Vec<Heavy>> = BTreeMap::new();
    for heavy in server.backend.heaviest() {
        // A rule that is gone has no name.
        let Some(at) = rules.iter().position(|rule| rule.id == heavy.rule) else { continue };
        let client = ClientName::from_key(&heavy.client);
        heaviest.entry(at).or_default().push(Heavy {
            client,
            allowed: heavy.admitted,
            refused: heavy.rejected,
        });
    }
    let told = |(at, clients): (usize, Vec<Heavy>)| {
        rules.get(at).map(|rule| json!({ "rule": rule.name, "clients": clients }))
    };
    let rules: Vec<_> = heaviest.into_iter().filter_map(told).collect();
    let note = "estimates from a sample of about one decision in 1,024";
    response::json(StatusCode::OK, &json!({ "rules": rules, "note": note }))
}

/// The rule that is called so.
pub(super) fn rule<'p>(plan: &'p Plan, name: &str) -> Result<&'p Rule, ApiError> {
    plan.rate_limits.iter().find(|rule| rule.name == name).ok_or_else(|| {
        let names: Vec<_> = plan.rate_limits.iter().take(20).map(|rule| rule.name.as_str()).collect();
        ApiError::bad("rule", "the policy has no rule of that name")
            .hint(format!("there are {}", names.join(", ")))
    })
}

/// The bytes that counters know a client by. Of a secret that is given by its hash they are known only while it is
/// among the heaviest.
pub(super) fn key<R: Backend>(server: &AdminServer<R>, plan: &Plan, text: &str) -> Result<Vec<u8>, ApiError> {
    let name: ClientName = text.parse().map_err(|error| ApiError::bad("client", format!("{error}")))?;
    if let Some(key) = name.key(&plan.identities) {
        return Ok(key);
    }
    let heaviest = server.backend.heaviest();
    let known = heaviest.into_iter().find(|heavy| name.names(&heavy.client));
    known.map(|heavy| heavy.client.into_vec()).ok_or_else(|| {
        ApiError::bad("client", "nobody among the heaviest clients has that hash")
            .hint("write the whole key: only its hash is shown, but the key itself is wanted here")
    })
}
