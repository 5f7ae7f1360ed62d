//! Clients and their counters: `/v1/reset`, `/v1/top`.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::{CounterKey, Timestamp};
use tidegate_policy::{ActivePolicy, ClientName, Exclusion, Plan, Rule, RuleClient};

use super::store_unavailable;
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
    let key = key(server, plan, &request.client).await?;
    let counters = counters(&active, &rules, &key)?;
    for (rule, key) in &counters {
        let result = server.backend.limiter().reset(CounterKey::new(rule.id, key)).await;
        result.map_err(|error| store_unavailable(&error))?;
    }
    let names: Vec<_> = counters.iter().map(|(rule, _)| rule.name.as_str()).collect();
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
/// the heaviest clients, and those with a lock-out or an override.
pub(super) async fn key<R: Backend>(
    server: &AdminServer<R>,
    plan: &Plan,
    text: &str,
) -> Result<Vec<u8>, ApiError> {
    let name: ClientName =
        text.parse().map_err(|error| ApiError::invalid_field("client", format!("{error}")))?;
    if let Some(key) = name.key(&plan.identities) {
        return Ok(key);
    }
    let heaviest = server.backend.heaviest().into_iter().map(|heavy| heavy.key.client.into_vec());
    let locked_out = server.state.locked_out().into_iter().map(|penalty| penalty.key.client.into_vec());
    let overridden = server.state.overrides().await.into_iter().map(|(key, _)| key.client);
    heaviest.chain(locked_out).chain(overridden).find(|key| name.names(key)).ok_or_else(|| {
        let message = "no client that is known here has this hash";
        ApiError::invalid_field("client", message).hint(
            "pass the complete key; a hash works only for the heaviest clients, and those with a lock-out or an override",
        )
    })
}

/// The counters that `rules` have for the client with the key `key`. An error if there are none: nothing that is done to a
/// counter that no rule uses has an effect.
pub(super) fn counters<'p>(
    active: &'p ActivePolicy,
    rules: &[&'p Rule],
    key: &[u8],
) -> Result<Vec<(&'p Rule, Vec<u8>)>, ApiError> {
    let name = ClientName::from_key(key);
    let refuse = |message| Err(ApiError::invalid_field("client", message));
    let exclusion = active.matcher.exclusion(&RuleClient::from_key(key), None, Timestamp::ZERO);
    if let Some(Exclusion::Exempt(_)) = exclusion {
        let hint = "change `clients.exempt` in the policy";
        return refuse(format!("{name} is exempt from all limits, so no rule counts it"))
            .map_err(|error| error.hint(hint));
    }
    let counter = |rule: &&'p Rule| Some((*rule, active.named_counter(rule, key)?));
    let counters: Vec<_> = rules.iter().filter_map(counter).collect();
    if !counters.is_empty() {
        return Ok(counters);
    }
    let message = match rules {
        [] => "the policy has no rate limits".to_owned(),
        [rule] => format!("the rule `{}` does not count {name}", rule.name),
        _ => format!("no rule counts {name}"),
    };
    refuse(message).map_err(|error| error.hint(counted(active, rules)))
}

/// How an operator names the clients that these rules count.
pub(super) fn counted(active: &ActivePolicy, rules: &[&Rule]) -> String {
    const MOST_NAMED: usize = 5;
    let describe =
        |rule: &&Rule| format!("`{}` counts {}", rule.name, active.counted_names(rule).join(" or "));
    let others = match rules.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        others => format!("; and {others} more"),
    };
    let listed: Vec<_> = rules.iter().take(MOST_NAMED).map(describe).collect();
    format!("name a client as the rule counts it: {}{others}", listed.join("; "))
}
