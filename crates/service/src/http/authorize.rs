//! `/v1/authorize`: whether a proxy may pass a request on.

use std::net::IpAddr;

use http::StatusCode;
use http::header::HeaderMap;
use smallvec::SmallVec;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_headers::{BodyStyle, RateLimitHeaders, ReportedLimit};
use tidegate_limiter::{AdmittedRuling, FailedRuling, RejectedRuling, Ruling};
use tidegate_policy::normalize;
use tidegate_store::Store;
use tidegate_telemetry::{DecisionKind, RequestSummary};

use super::decision::{DecisionLog, DecisionWriter};
use super::dispatch::EndpointCall;
use super::error::HttpError;
use super::facts::NormalRequest;
use super::original::OriginalRequest;
use super::response::HttpResponse;

/// What the limiter says, without the buffers of the decision.
enum AuthorizeOutcome<S: Store + 'static> {
    Pass,
    /// Pass after a delay; the charge is refunded if the client does not wait.
    Delay(TimeSpan, tidegate_limiter::RefundGuard<S>),
    /// 429 with this body.
    Reject(Vec<u8>),
}

/// Whether requests of `peer` may describe the requests of others.
pub(super) fn is_trusted<S: Store + 'static>(call: &EndpointCall<'_, S>, peer: IpAddr) -> bool {
    let trusted = &call.policy.active.matcher.plan().service.trusted_peers;
    peer.is_loopback() || trusted.iter().any(|network| network.contains(&peer))
}

/// Answers a trusted proxy.
pub(super) async fn authorize<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    (headers, proxy): (HeaderMap, IpAddr),
    version: &'static str,
) -> Result<HttpResponse, HttpError> {
    let mut original = OriginalRequest::read(headers)?;
    if call.policy.active.matcher.plan().identities.addresses().trusts(proxy) {
        original.came_through(proxy);
    }
    let request = NormalRequest::new(&call.policy.active, original.described())?;
    // The record is about the original request from here on.
    call.record.describe(|| summarize(&call.policy.active.matcher.plan().identities, &request, version));
    let now = call.record.start_decision();
    let mut limits = RateLimitHeaders::default();
    let (outcome, retry_after) = decide(call, &request, now, &mut limits).await?;
    if let Some(seconds) = retry_after {
        limits.push_retry_after(seconds);
    }
    let mut response = HttpResponse { limits, ..HttpResponse::empty() };
    match outcome {
        AuthorizeOutcome::Pass => {}
        AuthorizeOutcome::Delay(delay, refund) => {
            let _slot = call.worker.http.delay_slot().ok_or(HttpError::TooManyDelayed)?;
            tokio::time::sleep(delay.into()).await;
            refund.keep();
        }
        AuthorizeOutcome::Reject(body) => {
            response.status = StatusCode::TOO_MANY_REQUESTS;
            response.content_type = Some(body_style(call).content_type());
            response.body = body.into();
        }
    }
    Ok(response)
}

/// The style of error bodies: those of the gateway.
pub(super) fn body_style<S>(call: &EndpointCall<'_, S>) -> BodyStyle {
    call.policy.active.matcher.plan().error_body
}

async fn decide<S: Store + 'static>(
    call: &mut EndpointCall<'_, S>,
    request: &NormalRequest,
    now: Timestamp,
    headers: &mut RateLimitHeaders,
) -> Result<(AuthorizeOutcome<S>, Option<u64>), HttpError> {
    let (policy, limiter, style) = (&call.policy, &call.worker.limiter, body_style(call));
    let mut scratch = call.worker.http.scratch();
    let ruling = limiter.check(&policy.active, &request.facts(), &mut scratch, now).await;
    let cache = &call.worker.http.header_values;
    let mut writer = DecisionWriter { policy, cache, headers: Some(headers), retry_after: None };
    let log = &mut DecisionLog::Request(&mut call.record);
    let outcome = match ruling {
        Ruling::Admitted(AdmittedRuling { report, delay, .. }) => {
            log.reported(DecisionKind::Admitted, policy, &report);
            let limits = report.limits();
            writer.write_headers(report.at(), limits.primary(), &limits, log);
            if delay.is_zero() {
                AuthorizeOutcome::Pass
            } else {
                AuthorizeOutcome::Delay(delay, limiter.refund_guard(&report))
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
            AuthorizeOutcome::Reject(reason.error_body(writer.retry_after, limit).encode(style))
        }
        Ruling::Banned => {
            log.decided(DecisionKind::Banned);
            return Err(HttpError::Banned);
        }
        Ruling::Exempt(_) => {
            log.decided(DecisionKind::Exempt);
            AuthorizeOutcome::Pass
        }
        Ruling::StoreFailed(FailedRuling { report, is_binding, .. }) => {
            log.reported(DecisionKind::StoreFailed, policy, &report);
            if is_binding {
                return Err(HttpError::StoreUnavailable);
            }
            AuthorizeOutcome::Pass
        }
        // Unreachable: `check` does not take a rule name.
        Ruling::NoRule => return Err(HttpError::StoreUnavailable),
    };
    Ok((outcome, writer.retry_after))
}

/// Summarizes the original request without its query, its headers, and secrets in its path.
fn summarize(
    identities: &tidegate_policy::Identities,
    request: &NormalRequest,
    version: &'static str,
) -> RequestSummary {
    let NormalRequest { method, host, path, headers, peer } = request;
    let normal = normalize(path);
    let path = normal.as_deref().unwrap_or(path);
    RequestSummary {
        method: method.as_str().to_owned(),
        host: identities.redact(headers, host).into_owned(),
        path: identities.redact(headers, path).into_owned(),
        peer: identities.addresses().client(headers, *peer),
        version,
        bytes: None,
    }
}
