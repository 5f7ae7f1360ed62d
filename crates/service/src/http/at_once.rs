//! The frequent requests, answered without a future.
//!
//! If the counters are in this process, nothing waits for a store, and `/v1/check` and `/v1/authorize` can be answered by plain
//! functions.

use std::net::IpAddr;
use std::rc::Rc;

use tidegate_store::Store;
use tidegate_telemetry::DecisionSink;

use super::authorize::{conclude, original_request};
use super::check::{CheckSubject, encode};
use super::dispatch::{EndpointCall, ServiceEndpoint, check_head, parse};
use super::error::HttpError;
use super::message::{CheckMessage, SingleCheckMessage};
use super::request::{EndpointBody, EndpointRequest};
use super::response::HttpAnswer;
use crate::immediate::poll_immediate;

/// Longer bodies are likely to be batches.
const MAX_SINGLE: usize = 1 << 10;

/// The answer, if it needs no waiting. Otherwise nothing has happened.
#[inline]
pub(super) fn answer<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    endpoint: ServiceEndpoint,
    (request, peer): (&EndpointRequest<'_>, IpAddr),
    body: &EndpointBody<'_>,
) -> Option<Result<HttpAnswer, HttpError>> {
    if !call.worker.limiter.store().is_immediate() {
        return None;
    }
    let EndpointBody::Whole(body) = body else { return None };
    let checked = || check_head(call, endpoint, (request, peer));
    match endpoint {
        ServiceEndpoint::Check if body.len() <= MAX_SINGLE => match checked() {
            Ok(()) => check(call, body),
            Err(error) => Some(Err(error)),
        },
        ServiceEndpoint::Authorize => Some(checked().and_then(|()| authorize(call, (request, peer)))),
        _ => None,
    }
}

fn check<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    body: &[u8],
) -> Option<Result<HttpAnswer, HttpError>> {
    match parse(body) {
        Ok(CheckMessage { rule, client, cost, request, checks: None }) => {
            Some(check_one(call, SingleCheckMessage { rule, client, cost, request }))
        }
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    }
}

fn check_one<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    message: SingleCheckMessage<'_>,
) -> Result<HttpAnswer, HttpError> {
    let (policy, state) = (&call.policy, &call.worker.http);
    let subject = CheckSubject::new(&policy.active, &**call.worker.limiter.clock(), message)?;
    let mut scratch = state.scratch();
    let now = call.record.start_decision();
    let ruling = poll_immediate(subject.decide(call, &policy.active, (&mut scratch, now), true));
    let ruling = ruling.ok_or(HttpError::STORE_UNAVAILABLE)??;
    encode(&ruling, policy, DecisionSink::Request(&mut call.record)).map(HttpAnswer::from)
}

fn authorize<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    (request, peer): (&EndpointRequest<'_>, IpAddr),
) -> Result<HttpAnswer, HttpError> {
    let original = original_request(call, (&request.headers, peer), request.version)?;
    let (now, worker) = (call.record.start_decision(), call.worker);
    let (policy, mut scratch) = (Rc::clone(&call.policy), worker.http.scratch());
    let ruling = poll_immediate(worker.limiter.check(&policy.active, &original.facts(), &mut scratch, now));
    let ruling = ruling.ok_or(HttpError::STORE_UNAVAILABLE)?;
    Ok(conclude(call, &ruling))
}
