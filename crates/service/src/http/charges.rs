//! `/v1/refund` and `/v1/reset`.

use tidegate_core::Timestamp;
use tidegate_limiter::{RuleCheck, RuleError};
use tidegate_store::Store;

use super::check::checked_cost;
use super::client::rule_client;
use super::dispatch::{EndpointCall, parse};
use super::error::{HttpError, invalid};
use super::message::{RefundMessage, ResetMessage};
use super::response::HttpResponse;

pub(super) fn failed(error: &RuleError, rule: &str) -> HttpError {
    match error {
        RuleError::NoRule(_) => HttpError::NoRule { rule: rule.to_owned() },
        RuleError::Store(_) => HttpError::STORE_UNAVAILABLE,
    }
}

fn done(json: &str) -> HttpResponse {
    HttpResponse::json(json.as_bytes().to_vec())
}

/// `POST /v1/refund`.
pub(super) async fn refund<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    body: &[u8],
) -> Result<HttpResponse, HttpError> {
    let RefundMessage { rule, client, cost, charged_at } = parse(body)?;
    let (policy, limiter, now) = (&call.policy.active, &call.worker.limiter, call.worker.now());
    let client = rule_client(policy, &rule, client.as_ref())?;
    let charged = charged_at.map(charge_time).transpose()?;
    let check = RuleCheck { rule: &rule, client: &client, cost: checked_cost(cost)? };
    let refunded = limiter.refund_rule(policy, check, charged, now).await;
    let is_refunded = refunded.map_err(|error| failed(&error, &rule))?;
    Ok(done(if is_refunded { "{\"refunded\":true}\n" } else { "{\"refunded\":false}\n" }))
}

/// The time of Unix seconds with a fraction.
fn charge_time(seconds: f64) -> Result<Timestamp, HttpError> {
    let micros = (seconds * 1e6).round();
    if !(0.0..=9e15).contains(&micros) {
        return Err(invalid("`charged_at` must be Unix seconds, such as `at` of the check"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
    let micros = micros as u64;
    Ok(Timestamp::from_micros(micros))
}

/// `POST /v1/reset`.
pub(super) async fn reset<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    body: &[u8],
) -> Result<HttpResponse, HttpError> {
    let ResetMessage { rule, client } = parse(body)?;
    let (policy, limiter) = (&call.policy.active, &call.worker.limiter);
    let client = rule_client(policy, &rule, client.as_ref())?;
    limiter.reset_rule(policy, (&rule, client.key())).await.map_err(|error| failed(&error, &rule))?;
    Ok(done("{\"reset\":true}\n"))
}
