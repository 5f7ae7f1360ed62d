//! `/v1/refund`, `/v1/reset`, `/v1/reserve` and `/v1/commit`.

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_limiter::{ChargeUse, RuleCheck, RuleError, Ruling};
use tidegate_store::Store;
use tidegate_telemetry::DecisionSink;

use super::check::checked_cost;
use super::client::rule_client;
use super::decision::{put, put_text, write_decision};
use super::dispatch::{EndpointCall, parse};
use super::error::{HttpError, invalid};
use super::message::{CommitMessage, RefundMessage, ReserveMessage, ResetMessage};
use super::response::HttpResponse;
use crate::reservations::{OpenReservation, ReservationId};

/// How long a reservation is open, unless the client says so, and at most: a minute and an hour.
const DEFAULT_TTL: u64 = 60;
const MAX_TTL: u64 = 3_600;

fn failed(error: &RuleError, rule: &str) -> HttpError {
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

/// `POST /v1/reserve`.
pub(super) async fn reserve<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    body: &[u8],
) -> Result<HttpResponse, HttpError> {
    let ReserveMessage { rule, client, cost, ttl } = parse(body)?;
    let (policy, state) = (&call.policy, &call.worker.http);
    let client = rule_client(&policy.active, &rule, client.as_ref())?;
    let cost = checked_cost(cost)?;
    let ttl = ttl.unwrap_or(DEFAULT_TTL);
    if !(1..=MAX_TTL).contains(&ttl) {
        return Err(invalid(format!("`ttl` must be 1 to {MAX_TTL} seconds")));
    }
    // Before anything is charged.
    let id = ReservationId::random().ok_or(HttpError::TOO_MANY_RESERVATIONS)?;
    let slot = state.reservations.slot((&rule, client.key()), call.worker.now());
    let slot = slot.ok_or(HttpError::TOO_MANY_RESERVATIONS)?;
    let mut scratch = state.scratch();
    let now = call.record.start_decision();
    let check = RuleCheck { rule: &rule, client: &client, cost };
    let ruling = call.worker.limiter.check_rule(&policy.active, check, &mut scratch, now).await;
    let ruling = ruling.map_err(|unknown| failed(&unknown.into(), &rule))?;
    let mut json = Vec::with_capacity(256);
    write_decision(&ruling, policy, &mut DecisionSink::Request(&mut call.record), &mut json)?;
    put(&mut json, r#","reservation":"#);
    if let Ruling::Serve(serve) = &ruling {
        // Nothing was charged if the client is exempt, or if the rule is in shadow mode and the store failed.
        let charge = serve.charge(&call.worker.limiter, ChargeUse::Committed);
        let expires = now + TimeSpan::from_secs(ttl);
        slot.open(id, OpenReservation { rule: rule.as_ref().into(), charge, expires });
        put_text(&mut json, &id.to_string());
    } else {
        put(&mut json, "null");
    }
    put(&mut json, "}\n");
    Ok(HttpResponse::json(json))
}

/// `POST /v1/commit`.
pub(super) async fn commit<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    body: &[u8],
) -> Result<HttpResponse, HttpError> {
    let CommitMessage { reservation, cost } = parse(body)?;
    if cost.is_none() {
        return Err(invalid("`cost` is null; send the final cost"));
    }
    let cost = checked_cost(cost)?;
    let id: ReservationId = reservation.parse().map_err(|_| HttpError::NO_RESERVATION)?;
    // Removed before the store is asked: a reservation is committed at most once, also if the store fails.
    let reservations = &call.worker.http.reservations;
    let open = reservations.take(id, call.worker.now()).ok_or(HttpError::NO_RESERVATION)?;
    let is_refunded = match open.charge {
        Some(charge) => {
            let committed = charge.commit(&call.policy.active, &open.rule, cost).await;
            committed.map_err(|_| HttpError::STORE_UNAVAILABLE)?
        }
        None => true,
    };
    let mut json = br#"{"committed":true,"rule":"#.to_vec();
    put_text(&mut json, &open.rule);
    put(&mut json, if is_refunded { "}\n" } else { ",\"refunded\":false}\n" });
    Ok(HttpResponse::json(json))
}
