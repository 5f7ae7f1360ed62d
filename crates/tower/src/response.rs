//! HTTP responses to errors: the only place of this crate that chooses what clients are told.

use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use tidegate_headers::{BodyFormat, BodyStyle, ErrorBody, HeaderStyle, RefusalEntry, write_grpc_status};

use crate::error::{BoxError, LayerError, find_cause};

const INTERNAL_ERROR: RefusalEntry =
    RefusalEntry::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "Internal error.");
/// Tells the developer of the service what is wrong with every request.
#[cfg(any(feature = "policy", feature = "rate_limit"))]
const MISSING_CONNECT_INFO: RefusalEntry = RefusalEntry::new(
    StatusCode::INTERNAL_SERVER_ERROR,
    "internal_error",
    "The server does not know the address of the client; see `MissingConnectInfo` of tidegate-tower.",
);

/// The response to an error of a layer: 503, 504 or 429 with `Retry-After`; 500 for an error that no layer caused.
///
/// For handlers that call a service themselves; around a whole service, use [`HttpErrorLayer`](crate::HttpErrorLayer).
pub fn into_response<B: From<Vec<u8>>>(
    error: impl Into<BoxError> + 'static,
    style: BodyStyle,
) -> Response<B> {
    let error = LayerError::new(error);
    #[cfg(feature = "rate_limit")]
    if let Some(limited) = find_cause::<crate::rate_limit::RateLimited>(&error) {
        return limited_response(limited, style);
    }
    let (refusal, retry_after) = describe(&error);
    respond(&refusal.body(retry_after, None), &style.into(), &[])
}

/// The response to a rejection by a rate limit, with the headers of that limit.
#[cfg(feature = "rate_limit")]
fn limited_response<B: From<Vec<u8>>>(
    limited: &crate::rate_limit::RateLimited,
    style: BodyStyle,
) -> Response<B> {
    use tidegate_headers::{HeaderValueCache, HeaderWriter, RateLimitHeaders};

    let styles = &[HeaderStyle::XRateLimit, HeaderStyle::RateLimit];
    let mut response = rate_limited_response(limited, style, styles);
    let (report, mut headers) = (limited.limit(), RateLimitHeaders::default());
    let mut writer = HeaderWriter { styles, cache: &mut HeaderValueCache::default() };
    writer.write_limits(&mut headers, limited.at, &report, &[report]);
    headers.insert_into(response.headers_mut());
    response
}

/// The response to a rejection by a rate limit, without the headers that report limits.
#[cfg(feature = "rate_limit")]
pub(crate) fn rate_limited_response<B: From<Vec<u8>>>(
    limited: &crate::rate_limit::RateLimited,
    style: BodyStyle,
    styles: &[HeaderStyle],
) -> Response<B> {
    use smallvec::SmallVec;
    use tidegate_headers::ReportedLimit;

    let report = limited.limit();
    let violated: SmallVec<[&str; 4]> = limited.violated().collect();
    let reported = ReportedLimit { at: limited.at, report: &report, violated: &violated };
    let body = RefusalEntry::RATE_LIMIT_EXCEEDED.body(limited.retry_after_seconds(), Some(reported));
    respond(&body, &style.into(), styles)
}

/// A response with this body. `styles` are those of the headers that report limits.
pub(crate) fn respond<B: From<Vec<u8>>>(
    body: &ErrorBody<'_>,
    format: &BodyFormat,
    styles: &[HeaderStyle],
) -> Response<B> {
    let mut response = Response::new(B::from(format.encode(body)));
    *response.status_mut() = body.status;
    response.headers_mut().insert(CONTENT_TYPE, format.content_type());
    body.write_retry_after(response.headers_mut(), styles);
    response
}

/// The response to a request that is ambiguous, or has a token or an API key that is not valid.
#[cfg(feature = "policy")]
pub(crate) fn request_error_response<B: From<Vec<u8>>>(
    error: &tidegate_policy::RequestError,
    style: BodyStyle,
) -> Response<B> {
    let message = error.message();
    let mut response = respond(&ErrorBody::new(error.status(), error.code(), &message), &style.into(), &[]);
    if let Some(challenge) = error.challenge() {
        response
            .headers_mut()
            .insert(http::header::WWW_AUTHENTICATE, http::HeaderValue::from_static(challenge));
    }
    response
}

/// The response to an error of a layer, as a gRPC status: `RESOURCE_EXHAUSTED` for a rate limit, `UNAVAILABLE` for an open breaker, a
/// full bulkhead and overload, `DEADLINE_EXCEEDED` for deadlines and timeouts, `UNKNOWN` for an error that no layer caused.
/// `styles` are those of the headers that report limits.
pub(crate) fn grpc_response<B: Default>(error: &LayerError, styles: &[HeaderStyle]) -> Response<B> {
    let mut response = Response::new(B::default());
    let (refusal, retry_after) = describe(error);
    let body = refusal.body(retry_after, None);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
    write_grpc_status(headers, body.status, &body.full_message(), retry_after);
    body.write_retry_after(headers, styles);
    response
}

/// What the client is told about an error, and after how many seconds it may retry.
fn describe(error: &LayerError) -> (&'static RefusalEntry, Option<u64>) {
    #[cfg(feature = "rate_limit")]
    if let Some(limited) = find_cause::<crate::rate_limit::RateLimited>(error) {
        return (&RefusalEntry::RATE_LIMIT_EXCEEDED, limited.retry_after_seconds());
    }
    #[cfg(feature = "breaker")]
    if let Some(open) = find_cause::<crate::breaker::BreakerOpen>(error) {
        let seconds = open.retry_after.map(|wait| wait.as_secs_ceil().max(1));
        return (&RefusalEntry::BREAKER_OPEN, seconds.or(RefusalEntry::BREAKER_OPEN.retry_after));
    }
    let refusal = describe_simple(error);
    (refusal, refusal.retry_after)
}

/// The same for errors about which nothing else is known.
fn describe_simple(error: &LayerError) -> &'static RefusalEntry {
    #[cfg(feature = "bulkhead")]
    if find_cause::<crate::bulkhead::BulkheadFull>(error).is_some() {
        return &RefusalEntry::BULKHEAD_FULL;
    }
    #[cfg(feature = "thread_pool")]
    if find_cause::<crate::thread_pool::ThreadPoolFull>(error).is_some() {
        return &RefusalEntry::THREAD_POOL_FULL;
    }
    #[cfg(feature = "load_shed")]
    if find_cause::<crate::load_shed::Overload>(error).is_some() {
        return &RefusalEntry::OVERLOADED;
    }
    #[cfg(feature = "deadline")]
    if find_cause::<crate::deadline::DeadlineExceeded>(error).is_some() {
        return &RefusalEntry::DEADLINE_EXCEEDED;
    }
    #[cfg(feature = "timeout")]
    if find_cause::<crate::timeout::AttemptTimeout>(error).is_some() {
        return &RefusalEntry::UPSTREAM_TIMEOUT;
    }
    #[cfg(any(feature = "policy", feature = "rate_limit"))]
    if find_cause::<crate::address::MissingConnectInfo>(error).is_some() {
        return &MISSING_CONNECT_INFO;
    }
    if find_cause::<tidegate_store::StoreError>(error).is_some() {
        return &RefusalEntry::STORE_UNAVAILABLE;
    }
    &INTERNAL_ERROR
}
