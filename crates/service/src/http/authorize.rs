//! `/v1/authorize`: whether a proxy may pass a request on.

use std::net::IpAddr;
use std::rc::Rc;

use http::{HeaderName, HeaderValue, Version};
use tidegate_core::{ActionKind, ActionSet, Timestamp};
use tidegate_headers::{BodyFormat, BodyStyle, DEGRADE, ErrorBody, RateLimitHeaders};
use tidegate_limiter::{Charge, ChargeUse, CheckContext, Ruling, Turn, WaitPlace, WaitTerms};
use tidegate_policy::{ExceedAction, normalize};
use tidegate_store::Store;
use tidegate_telemetry::{DecisionSink, RequestSummary};

use super::dispatch::{EndpointCall, version_text};
use super::error::HttpError;
use super::facts::OwnedRequest;
use super::original::{BODY, OriginalRequest};
use super::request::RequestHeaders;
use super::response::{HttpAnswer, HttpResponse, PendingAnswer};
use crate::worker::ServiceWorker;

/// The actions that a proxy performs with this endpoint. It has no other upstream: it would pass the request on to the usual one.
const PERFORMED: ActionSet = ActionSet::of(&[ActionKind::Wait, ActionKind::Degrade, ActionKind::Slow]);

/// A delay before a response; the charge is refunded if the client does not wait.
pub(super) struct AnswerDelay {
    /// `None` if too many requests wait.
    place: Option<WaitPlace>,
    charge: Option<Charge>,
}

impl AnswerDelay {
    /// Waits, unless too many requests wait already or the service ends before.
    pub(super) async fn wait<S: Store + 'static>(
        mut self: Box<Self>,
        worker: &ServiceWorker<S>,
    ) -> Result<(), HttpError> {
        let place = self.place.as_mut().ok_or(HttpError::TOO_MANY_WAITING)?;
        if place.turn(&**worker.limiter.clock()).await == Turn::Over {
            return Err(HttpError::TOO_MANY_WAITING);
        }
        self.charge.iter_mut().for_each(Charge::serve);
        Ok(())
    }
}

/// Whether requests of `peer` may describe the requests of others.
pub(super) fn is_trusted<S: Store + 'static>(call: &EndpointCall<'_, S>, peer: IpAddr) -> bool {
    let trusted = &call.policy.active.matcher.plan().service.trusted_peers;
    peer.is_loopback() || trusted.iter().any(|network| network.contains(&peer))
}

/// Answers a trusted proxy.
pub(super) fn authorize<'f, S: Store + 'static>(
    call: &'f mut EndpointCall<'_, S>,
    headers: &RequestHeaders<'_>,
    proxy: IpAddr,
    version: Version,
) -> Result<PendingAnswer<'f>, HttpError> {
    let request = original_request(call, headers, proxy, version)?;
    let (now, worker) = (call.record.start_decision(), call.worker);
    let (policy, mut scratch) = (Rc::clone(&call.policy), worker.http.scratch());
    let context = CheckContext { now, performs: PERFORMED };
    match worker.limiter.try_check(&policy.active, &request.facts(), &mut scratch, context) {
        Some(ruling) if !ruling.is_wait() => return Ok(PendingAnswer::Ready(conclude(call, ruling))),
        // Nothing was charged.
        _ => {}
    }
    drop(scratch);
    Ok(PendingAnswer::Waiting(Box::pin(authorize_later(call, request, now))))
}

/// Answers after the store has decided.
async fn authorize_later<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    request: OwnedRequest,
    now: Timestamp,
) -> Result<HttpAnswer, HttpError> {
    let worker = call.worker;
    let (policy, mut scratch) = (Rc::clone(&call.policy), worker.http.scratch());
    let context = CheckContext { now, performs: PERFORMED };
    let facts = request.facts();
    let act = match worker.limiter.check(&policy.active, &facts, &mut scratch, context).await {
        Ruling::Act(act) if act.is_wait() => act,
        ruling => return Ok(conclude(call, ruling)),
    };
    let terms = WaitTerms { arrived: now, deadline: None, performs: PERFORMED };
    let mut place = match worker.limiter.join(act, terms).await {
        Ok(place) => place,
        Err(refuse) => return Ok(conclude(call, Ruling::Refuse(*refuse))),
    };
    drop(scratch);
    loop {
        place.turn(&**worker.limiter.clock()).await;
        let (now, mut scratch) = (call.record.start_decision(), worker.http.scratch());
        let checked =
            worker.limiter.check_at_turn(&policy.active, &facts, &mut scratch, (&mut place, now)).await;
        if let Some(ruling) = checked {
            return Ok(conclude(call, ruling));
        }
    }
}

/// The request about which a proxy asks.
fn original_request<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    headers: &RequestHeaders<'_>,
    proxy: IpAddr,
    version: Version,
) -> Result<OwnedRequest, HttpError> {
    let mut original = OriginalRequest::read(headers.iter())?;
    let identities = &call.policy.active.matcher.plan().identities;
    if identities.addresses().trusts(proxy) {
        original.came_through(proxy);
    }
    let clock = &**call.worker.limiter.clock();
    let request = OwnedRequest::new(&call.policy.active, clock, original.described()?)?;
    // The record is about the original request from here on.
    call.record.describe(|| summarize(identities, &request, version_text(version)));
    Ok(request)
}

/// Repeats the body of a response in a header, if the proxy asks for that.
pub(super) fn repeat_body(asked: &RequestHeaders<'_>, response: &mut HttpResponse) {
    if asked.single(BODY) == Some(b"header")
        && let Ok(body) = HeaderValue::from_bytes(response.body.trim_ascii_end())
    {
        response.headers.insert(HeaderName::from_static(BODY), body);
    }
}

/// The style of error bodies: those of the gateway.
pub(super) fn body_style<S>(call: &EndpointCall<'_, S>) -> BodyStyle {
    call.policy.active.matcher.plan().error_body
}

/// The answer that a ruling means.
fn conclude<S: Store + 'static>(call: &mut EndpointCall<'_, S>, mut ruling: Ruling<'_>) -> HttpAnswer {
    let (policy, http, limiter) = (&call.policy, &call.worker.http, &call.worker.limiter);
    if let Ruling::Act(act) = ruling {
        ruling = match act.action() {
            ExceedAction::Degrade { upstream: None } => Ruling::Act(act),
            _ => Ruling::Refuse(act.refuse(limiter)),
        };
    }
    let plan = policy.active.matcher.plan();
    let limits = ruling.report().limits();
    DecisionSink::Request(&mut call.record).record(&policy.counted, ruling.recorded(&limits));
    let mut headers = Box::<RateLimitHeaders>::default();
    limits.write_headers(&plan.headers, &mut http.header_values.borrow_mut(), &mut headers);
    let (mut response, delay) = match &ruling {
        Ruling::Serve(serve) if serve.delay.is_zero() => (HttpResponse::empty(), None),
        Ruling::Serve(serve) => {
            let charge = serve.charge(limiter, ChargeUse::Refundable);
            let place = limiter.waits().delay(serve.report.client(), limiter.clock().now() + serve.delay);
            (HttpResponse::empty(), Some(Box::new(AnswerDelay { place, charge })))
        }
        Ruling::Act(act) => {
            let mut response = HttpResponse::empty();
            response.headers.insert(DEGRADE, HeaderValue::from_static("1"));
            let delay = (!act.delay.is_zero()).then(|| {
                let charge = act.charge(limiter, ChargeUse::Refundable);
                let place = limiter.waits().delay(act.report.client(), limiter.clock().now() + act.delay);
                Box::new(AnswerDelay { place, charge })
            });
            (response, delay)
        }
        Ruling::Refuse(refuse) => {
            let code = refuse.reason.refusal().code;
            call.record.set_error(|| (code, refuse.retry_after_seconds()));
            let told =
                |body: &ErrorBody<'_>, format: &BodyFormat| HttpResponse::error(body, format, &plan.headers);
            (refuse.describe(&limits, plan, told), None)
        }
    };
    response.limits = Some(headers);
    HttpAnswer { response, delay }
}

/// Summarizes the original request without its query, its headers, and secrets in its path.
fn summarize(
    identities: &tidegate_policy::Identities,
    request: &OwnedRequest,
    version: &'static str,
) -> RequestSummary {
    let OwnedRequest { method, host, path, headers, peer, .. } = request;
    let normal = normalize(path);
    let path = normal.as_deref().unwrap_or(path);
    RequestSummary {
        method: method.as_str().to_owned(),
        host: identities.redact(headers, host.as_deref().unwrap_or_default()).into_owned(),
        path: identities.redact(headers, path).into_owned(),
        peer: identities.addresses().client(headers, *peer),
        version,
        bytes: None,
    }
}
