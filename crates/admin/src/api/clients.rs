//! Clients and their counters: `/v1/reset`, `/v1/top`.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::CounterKey;
use tidegate_policy::{ClientName, Plan, Rule};

use crate::backend::Backend;
use crate::response::{self, ApiError, ApiResponse};
use crate::server::AdminServer;

/// The body of a request that resets counters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetRequest {
    client: String,
    rule: Option<String>,
}

/// Resets the counters of a client, under one rule or all rules, and ends its lock-outs under them.
pub(super) async fn reset<R: Backend>(
    server: &AdminServer<R>,
    request: ResetRequest,
) -> Result<ApiResponse, ApiError> {
    let active = server.backend.limiter().policy();
    let plan = active.matcher.plan();
    let rules: Vec<_> = match &request.rule {
        Some(name) => vec![rule(plan, name)?],
        None => plan.rate_limits.iter().collect(),
    };
    let key = key(server, plan, &request.client)?;
    for rule in &rules {
        let result = server.backend.limiter().reset(CounterKey::new(rule.id, &key)).await;
        result.map_err(|error| ApiError::unavailable("store_unavailable", error.to_string()))?;
    }
    let names: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).collect();
    let client = ClientName::from_key(&key);
    let message = format!("counters reset: {client} under {}", names.join(", "));
    server.backend.log_event("counters_reset", &message, &client.to_string());
    Ok(response::json(StatusCode::OK, &json!({ "client": client, "rules": names })))
}

/// A heavy client in a response.
#[derive(Serialize)]
struct HeavyClientView {
    client: ClientName,
    admitted: u64,
    rejected: u64,
}

/// The heaviest clients of each rule.
pub(super) fn top<R: Backend>(server: &AdminServer<R>) -> ApiResponse {
    let active = server.backend.limiter().policy();
    let rules: Vec<_> = active.matcher.plan().rate_limits.iter().collect();
    let mut heaviest: BTreeMap<usize, Vec<HeavyClientView>> = BTreeMap::new();
    for heavy in server.backend.heaviest() {
        // The name of a removed rule is unknown.
        let Some(index) = rules.iter().position(|rule| rule.id == heavy.key.rule) else { continue };
        let client = ClientName::from_key(&heavy.key.client);
        let view = HeavyClientView { client, admitted: heavy.admitted, rejected: heavy.rejected };
        heaviest.entry(index).or_default().push(view);
    }
    let to_json = |(index, clients): (usize, Vec<HeavyClientView>)| {
        rules.get(index).map(|rule| json!({ "rule": rule.name, "clients": clients }))
    };
    let rules: Vec<_> = heaviest.into_iter().filter_map(to_json).collect();
    let note = "estimates from a sample of about one decision in 1,024";
    response::json(StatusCode::OK, &json!({ "rules": rules, "note": note }))
}

/// The rule with this name.
pub(super) fn rule<'p>(plan: &'p Plan, name: &str) -> Result<&'p Rule, ApiError> {
    plan.rate_limits.iter().find(|rule| rule.name == name).ok_or_else(|| {
        let names: Vec<_> = plan.rate_limits.iter().take(20).map(|rule| rule.name.as_str()).collect();
        ApiError::invalid_field("rule", format!("the policy has no rule `{name}`"))
            .hint(format!("available rules: {}", names.join(", ")))
    })
}

/// The bytes that identify a client in the counters. A client that is given by the hash of its secret is found only among
/// the heaviest clients.
pub(super) fn key<R: Backend>(server: &AdminServer<R>, plan: &Plan, text: &str) -> Result<Vec<u8>, ApiError> {
    let name: ClientName =
        text.parse().map_err(|error| ApiError::invalid_field("client", format!("{error}")))?;
    if let Some(key) = name.key(&plan.identities) {
        return Ok(key);
    }
    let heaviest = server.backend.heaviest();
    let known = heaviest.into_iter().find(|heavy| name.names(&heavy.key.client));
    known.map(|heavy| heavy.key.client.into_vec()).ok_or_else(|| {
        ApiError::invalid_field("client", "none of the heaviest clients has this hash")
            .hint("pass the complete key; a hash works only for the heaviest clients")
    })
}
