//! The check of one request.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts as RequestParts;
use http::{Request, Response};
use http_body::Body;
use smallvec::SmallVec;
use tidegate_core::TimeSpan;
use tidegate_headers::{
    BodyStyle, HeaderStyle, HeaderValueCache, HeaderWriter, RateLimitHeaders, ReportedLimit,
    retry_after_seconds,
};
use tidegate_limiter::{
    Charge, ChargeUse, FailedRuling, Limiter, RejectedRuling, Ruling, RulingReport,
};
use tidegate_policy::{ActivePolicy, HeaderTraits, ReadOptions, RequestError, RequestHead, Scratch};
use tidegate_store::{Permit, Store};
use tokio::time::sleep;

use super::error::PolicyRejection;
use crate::response::{policy_rejection_response, respond};

/// A request that may be served, or the response to it.
pub(super) type PolicyVerdict<B, T> = Result<(Request<B>, AdmittedCall), Response<T>>;

/// What an admitted request holds until it has ended.
pub(super) struct AdmittedCall {
    /// The rate-limit headers of the response.
    pub(super) headers: RateLimitHeaders,
    /// Unserved until the service has the request. A client that disconnects later is not refunded.
    pub(super) charge: Option<Charge>,
    _permits: Vec<Permit>,
}

impl AdmittedCall {
    fn unlimited(permits: Vec<Permit>) -> Self {
        Self { headers: RateLimitHeaders::default(), charge: None, _permits: permits }
    }
}

/// Checks a request, and delays it if its limit requires that. Dropping the future during the delay refunds the charge.
pub(super) async fn check<B, T, D>(
    limiter: Arc<Limiter<D>>,
    request: Request<B>,
    peer: IpAddr,
) -> PolicyVerdict<B, T>
where
    B: Body,
    T: From<Vec<u8>>,
    D: Store + 'static,
{
    let policy = limiter.policy();
    let style = policy.matcher.plan().error_body;
    let (mut parts, body) = request.into_parts();
    let has_body = !body.is_end_stream();
    let admitted = decide(&limiter, &policy, (&mut parts, has_body), peer).await;
    match admitted {
        Ok((admitted, delay)) => {
            if !delay.is_zero() {
                sleep(delay.into()).await;
            }
            Ok((Request::from_parts(parts, body), admitted))
        }
        Err(Refusal::Error(error)) => Err(policy_rejection_response(&error, style)),
        Err(Refusal::Limit(rejected)) => Err(rejected.map(T::from)),
    }
}

enum Refusal {
    Error(PolicyRejection),
    Limit(Response<Vec<u8>>),
}

impl<E: Into<PolicyRejection>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// Decides about a request, and removes from it what its peer may not send.
async fn decide<D: Store + 'static>(
    limiter: &Limiter<D>,
    policy: &ActivePolicy,
    (parts, has_body): (&mut RequestParts, bool),
    peer: IpAddr,
) -> Result<(AdmittedCall, TimeSpan), Refusal> {
    let traits = HeaderTraits::trim_and_scan(&mut parts.headers);
    let head = RequestHead {
        method: parts.method.as_str(),
        uri: &parts.uri,
        version: Some(parts.version),
        headers: &mut parts.headers,
        traits,
        peer,
    };
    // The service has its own routes.
    let options =
        ReadOptions { directory: policy.directory.as_deref(), needs_route: false, removes_headers: true };
    let read = policy.matcher.read(head, options, || limiter.clock().now())?;
    let rewritten = read.rewritten_uri()?;
    let plan = policy.matcher.plan();
    let mut scratch = Scratch::default();
    let now = limiter.clock().now();
    let (mut admitted, delay) = match limiter.check(policy, &read.facts(), &mut scratch, now).await {
        Ruling::Admitted(admitted) => {
            let headers = write_headers(&plan.headers, &admitted.report, None);
            let charge = admitted.charge(limiter, ChargeUse::Refundable);
            (AdmittedCall { headers, charge, _permits: admitted.permits }, admitted.delay)
        }
        Ruling::Rejected(rejected) => {
            return Err(Refusal::Limit(reject(&plan.headers, plan.error_body, &rejected)));
        }
        Ruling::Banned => return Err(PolicyRejection::Banned.into()),
        Ruling::Exempt(_) => (AdmittedCall::unlimited(Vec::new()), TimeSpan::ZERO),
        Ruling::StoreFailed(FailedRuling { permits, is_binding: false, .. }) => {
            (AdmittedCall::unlimited(permits), TimeSpan::ZERO)
        }
        Ruling::StoreFailed(_) | Ruling::NoRule => return Err(PolicyRejection::NoDecision.into()),
    };
    if let Some(error) = read.refused {
        // What was charged stays: a guess is counted as a request without a token or a key.
        admitted.charge.iter_mut().for_each(Charge::serve);
        return Err(RequestError::Headers(*error).into());
    }
    if let Some(uri) = rewritten {
        parts.uri = uri;
    }
    // A meter is open exactly if the cost depends on a length that the request does not state.
    let meter = admitted.charge.as_mut().and_then(Charge::meter);
    if meter.is_some() && has_body {
        return Err(PolicyRejection::NoLength.into());
    }
    Ok((admitted, delay))
}

fn reject(styles: &[HeaderStyle], body: BodyStyle, rejected: &RejectedRuling<'_>) -> Response<Vec<u8>> {
    let RejectedRuling { report, reason, retry_after, .. } = rejected;
    let retry_after = retry_after.map(|wait| retry_after_seconds(wait, report.client()));
    let limits = report.limits();
    let violated: SmallVec<[&str; 4]> = report.violated().collect();
    let Some(limit) = limits.primary() else {
        return policy_rejection_response(&PolicyRejection::NoDecision, body);
    };
    let reported = ReportedLimit { at: report.at(), report: limit, violated: &violated };
    let mut response = respond(&reason.error_body(retry_after, reported), body);
    write_headers(styles, report, retry_after).insert_into(response.headers_mut());
    response
}

fn write_headers(
    styles: &[HeaderStyle],
    report: &RulingReport<'_>,
    retry_after: Option<u64>,
) -> RateLimitHeaders {
    thread_local! {
        static CACHE: RefCell<HeaderValueCache> = RefCell::default();
    }
    let mut headers = RateLimitHeaders::default();
    let limits = report.limits();
    if let Some(primary) = limits.primary() {
        CACHE.with_borrow_mut(|cache| {
            let mut writer = HeaderWriter { styles, cache };
            writer.write_limits(&mut headers, report.at(), primary, &limits);
            if let Some(seconds) = retry_after {
                writer.write_retry_after(&mut headers, seconds);
            }
        });
    }
    headers
}
