//! HTTP responses to errors: the only place of this crate that chooses status codes.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use tidegate_headers::{BodyStyle, ErrorBody, write_retry_after};

use crate::error::{BoxError, find_cause};

/// A rejection may be over as soon as any call ends, so clients are asked to come back soon.
const SOON: u64 = 1;

/// The response to an error of a layer: 503, 504 or 429 with `Retry-After`; 500 for an error that no layer caused.
///
/// With axum, use it in a `HandleErrorLayer`:
///
/// ```
/// use axum::body::Body;
/// use axum::error_handling::HandleErrorLayer;
/// use tidegate_headers::BodyStyle;
/// use tidegate_tower::{BoxError, into_response};
///
/// let layer = HandleErrorLayer::new(|error: BoxError| async { into_response::<Body>(error, BodyStyle::Flat) });
/// # let _: HandleErrorLayer<_, ()> = layer;
/// ```
pub fn into_response<B: From<Vec<u8>>>(error: impl Into<BoxError>, style: BodyStyle) -> Response<B> {
    let error = error.into();
    #[cfg(feature = "rate_limit")]
    if let Some(limited) = find_cause::<crate::rate_limit::RateLimited>(&error) {
        let mut response = rate_limited_response(limited, style);
        write_limit(&mut response, limited);
        return response;
    }
    respond(&describe(&error), style)
}

/// The response to a rejection by a rate limit, without rate-limit headers.
#[cfg(feature = "rate_limit")]
pub(crate) fn rate_limited_response<B: From<Vec<u8>>>(
    limited: &crate::rate_limit::RateLimited,
    style: BodyStyle,
) -> Response<B> {
    use smallvec::SmallVec;
    use tidegate_headers::{RejectionReason, ReportedLimit};

    let report = limited.limit();
    let violated: SmallVec<[&str; 4]> = limited.violated().collect();
    let reported = ReportedLimit { at: limited.at, report: &report, violated: &violated };
    respond(&RejectionReason::Limit.error_body(limited.retry_after_seconds(), reported), style)
}

/// Writes the headers of the limit that rejects a request.
#[cfg(feature = "rate_limit")]
fn write_limit<B>(response: &mut Response<B>, limited: &crate::rate_limit::RateLimited) {
    use tidegate_headers::{HeaderStyle, HeaderValueCache, HeaderWriter, RateLimitHeaders};

    let (report, mut headers) = (limited.limit(), RateLimitHeaders::default());
    let styles = &[HeaderStyle::XRateLimit, HeaderStyle::RateLimit];
    let mut writer = HeaderWriter { styles, cache: &mut HeaderValueCache::default() };
    writer.write_limits(&mut headers, limited.at, &report, &[report]);
    if let Some(seconds) = limited.retry_after_seconds() {
        writer.write_retry_after(&mut headers, seconds);
    }
    headers.insert_into(response.headers_mut());
}

pub(crate) fn respond<B: From<Vec<u8>>>(body: &ErrorBody<'_>, style: BodyStyle) -> Response<B> {
    let mut response = Response::new(B::from(body.encode(style)));
    *response.status_mut() = body.status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(style.content_type()));
    if let Some(seconds) = body.retry_after {
        write_retry_after(response.headers_mut(), seconds);
    }
    response
}

/// The response to a request that a policy rejects other than by a limit.
#[cfg(feature = "policy")]
pub(crate) fn policy_rejection_response<B: From<Vec<u8>>>(
    error: &crate::policy::PolicyRejection,
    style: BodyStyle,
) -> Response<B> {
    use crate::policy::PolicyRejection;

    let message;
    let (status, code, text) = match error {
        PolicyRejection::Banned => (StatusCode::FORBIDDEN, "banned", "Client is banned."),
        PolicyRejection::NoDecision => {
            let message = "Rate limit store unavailable.";
            (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message)
        }
        PolicyRejection::NoLength => {
            (StatusCode::LENGTH_REQUIRED, "length_required", "Request needs a Content-Length.")
        }
        PolicyRejection::Request(error) => {
            message = error.message();
            (error.status(), error.code(), &*message)
        }
    };
    let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some(SOON);
    let mut response = respond(&ErrorBody { retry_after, ..ErrorBody::new(status, code, text) }, style);
    if let PolicyRejection::Request(error) = error
        && let Some(challenge) = error.challenge()
    {
        response.headers_mut().insert(http::header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    response
}

pub(crate) fn describe(error: &BoxError) -> ErrorBody<'static> {
    let unavailable = |code, message| ErrorBody {
        retry_after: Some(SOON),
        ..ErrorBody::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    };
    let timeout = |code, message| ErrorBody {
        retry_after: Some(SOON),
        ..ErrorBody::new(StatusCode::GATEWAY_TIMEOUT, code, message)
    };
    #[cfg(feature = "breaker")]
    if let Some(open) = find_cause::<crate::breaker::BreakerOpen>(error) {
        let seconds = open.retry_after.map_or(SOON, |wait| wait.as_secs_ceil().max(SOON));
        let body = unavailable("breaker_open", "Service is failing.");
        return ErrorBody { retry_after: Some(seconds), ..body };
    }
    #[cfg(feature = "bulkhead")]
    if find_cause::<crate::bulkhead::BulkheadFull>(error).is_some() {
        return unavailable("bulkhead_full", "Too many concurrent requests.");
    }
    #[cfg(feature = "thread_pool")]
    if find_cause::<crate::thread_pool::ThreadPoolFull>(error).is_some() {
        return unavailable("thread_pool_full", "Too many concurrent requests.");
    }
    #[cfg(feature = "load_shed")]
    if find_cause::<crate::load_shed::Overload>(error).is_some() {
        return unavailable("overloaded", "Service is overloaded.");
    }
    #[cfg(feature = "deadline")]
    if find_cause::<crate::deadline::DeadlineExceeded>(error).is_some() {
        return timeout("deadline_exceeded", "Deadline of the request has passed.");
    }
    #[cfg(feature = "timeout")]
    if find_cause::<crate::timeout::AttemptTimeout>(error).is_some() {
        return timeout("upstream_timeout", "Upstream timed out.");
    }
    if find_cause::<tidegate_store::StoreError>(error).is_some() {
        return unavailable("store_unavailable", "Rate limit store unavailable.");
    }
    let _ = timeout;
    ErrorBody::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "Internal error.")
}
