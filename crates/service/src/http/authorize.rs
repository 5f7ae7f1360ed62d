//! `/v1/authorize`: whether a proxy may pass a request on.

use std::net::IpAddr;
use std::rc::Rc;

use http::{StatusCode, Version};
use smallvec::SmallVec;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_headers::{BodyStyle, RateLimitHeaders, ReportedLimit};
use tidegate_limiter::{AdmittedRuling, FailedRuling, RefundGuard, RejectedRuling, Ruling};
use tidegate_policy::normalize;
use tidegate_store::Store;
use tidegate_telemetry::{DecisionKind, RequestSummary};
use tokio::time::sleep;

use super::decision::{DecisionLog, DecisionWriter};
use super::dispatch::{EndpointCall, version_text};
use super::error::HttpError;
use super::facts::OwnedRequest;
use super::original::OriginalRequest;
use super::request::RequestHeaders;
use super::response::{HttpAnswer, HttpResponse, PendingAnswer};
use crate::worker::ServiceWorker;

/// A delay before a response; the charge is refunded if the client does not wait.
pub(super) struct AnswerDelay<S: Store + 'static> {
    delay: TimeSpan,
    refund: RefundGuard<S>,
}

impl<S: Store + 'static> AnswerDelay<S> {
    /// Waits, unless too many requests wait already.
    pub(super) async fn wait(self: Box<Self>, worker: &ServiceWorker<S>) -> Result<(), HttpError> {
        let _slot = worker.http.delay_slot().ok_or(HttpError::TooManyDelayed)?;
        Box::pin(sleep(self.delay.into())).await;
        self.refund.keep();
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
    (headers, proxy): (&RequestHeaders<'_>, IpAddr),
    version: Version,
) -> Result<PendingAnswer<'f, S>, HttpError> {
    let request = original_request(call, (headers, proxy), version)?;
    let (now, worker) = (call.record.start_decision(), call.worker);
    let (policy, mut scratch) = (Rc::clone(&call.policy), worker.http.scratch());
    if let Some(ruling) = worker.limiter.try_check(&policy.active, &request.facts(), &mut scratch, now) {
        return conclude(call, ruling).map(PendingAnswer::Ready);
    }
    Ok(PendingAnswer::Waiting(Box::pin(authorize_later(call, request, now))))
}

/// Answers after the store has decided.
async fn authorize_later<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    request: OwnedRequest,
    now: Timestamp,
) -> Result<HttpAnswer<S>, HttpError> {
    let worker = call.worker;
    let (policy, mut scratch) = (Rc::clone(&call.policy), worker.http.scratch());
    let ruling = worker.limiter.check(&policy.active, &request.facts(), &mut scratch, now).await;
    conclude(call, ruling)
}

/// The request about which a proxy asks.
fn original_request<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    (headers, proxy): (&RequestHeaders<'_>, IpAddr),
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

/// The style of error bodies: those of the gateway.
pub(super) fn body_style<S>(call: &EndpointCall<'_, S>) -> BodyStyle {
    call.policy.active.matcher.plan().error_body
}

/// The answer that a ruling means.
fn conclude<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    ruling: Ruling<'_>,
) -> Result<HttpAnswer<S>, HttpError> {
    let (policy, limiter, style) = (&call.policy, &call.worker.limiter, body_style(call));
    let mut headers = Box::<RateLimitHeaders>::default();
    let cache = &call.worker.http.header_values;
    let mut writer = DecisionWriter { policy, cache, headers: Some(&mut headers), retry_after: None };
    let log = &mut DecisionLog::Request(&mut call.record);
    let (mut response, mut delay) = (HttpResponse::empty(), None);
    match ruling {
        Ruling::Admitted(AdmittedRuling { report, delay: wait, .. }) => {
            log.reported(DecisionKind::Admitted, policy, &report);
            let limits = report.limits();
            writer.write_headers(report.at(), limits.primary(), &limits, log);
            if !wait.is_zero() {
                let refund = limiter.refund_guard(&report);
                delay = Some(Box::new(AnswerDelay { delay: wait, refund }));
            }
        }
        Ruling::Rejected(rejected) => {
            writer.reject(&rejected, log);
            let RejectedRuling { report, reason, .. } = &rejected;
            let limits = report.limits();
            writer.write_headers(report.at(), limits.primary(), &limits, log);
            let limit = limits.primary().ok_or(HttpError::StoreUnavailable)?;
            let violated: SmallVec<[&str; 4]> =
                if style == BodyStyle::Problem { report.violated().collect() } else { SmallVec::new() };
            let limit = ReportedLimit { at: report.at(), report: limit, violated: &violated };
            let body = reason.error_body(writer.retry_after, limit).encode(style);
            response = HttpResponse::new(style.content_type(), body);
            response.status = StatusCode::TOO_MANY_REQUESTS;
        }
        Ruling::Banned => {
            log.decided(DecisionKind::Banned);
            return Err(HttpError::Banned);
        }
        Ruling::Exempt(_) => log.decided(DecisionKind::Exempt),
        Ruling::StoreFailed(FailedRuling { report, is_binding, .. }) => {
            log.reported(DecisionKind::StoreFailed, policy, &report);
            if is_binding {
                return Err(HttpError::StoreUnavailable);
            }
        }
        // Unreachable: `check` does not take a rule name.
        Ruling::NoRule => return Err(HttpError::StoreUnavailable),
    }
    if let Some(seconds) = writer.retry_after {
        headers.push_retry_after(seconds);
    }
    response.limits = Some(headers);
    Ok(HttpAnswer { response, delay })
}

/// Summarizes the original request without its query, its headers, and secrets in its path.
fn summarize(
    identities: &tidegate_policy::Identities,
    request: &OwnedRequest,
    version: &'static str,
) -> RequestSummary {
    let OwnedRequest { method, host, path, headers, peer } = request;
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
