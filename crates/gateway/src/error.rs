//! The response to a request that was not served: the only place that chooses status codes.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, Response, StatusCode, Version};
use http_body::Body;
use tidegate_headers::{
    BodyStyle, ErrorBody, GrpcPushback, RejectionReason, ReportedLimit, grpc_content_type, write_grpc_status,
    write_retry_after,
};
use tidegate_policy::{FallbackBody, FallbackPlan, RequestError};

use crate::http::response_body::ResponseBody;

/// Capacity for the headers of an error response, the rate-limit headers included.
const HEADERS: usize = 12;

/// Why a request was not served.
#[derive(Debug)]
pub(crate) enum ServeError {
    /// The request is ambiguous, has no route, or has a token or an API key that is not valid.
    Request(RequestError),
    /// hyper cannot parse the head.
    BadHead,
    /// The head has too many bytes or fields.
    HeadTooLarge,
    /// The URI is too long.
    UriTooLong,
    /// The body is too large.
    TooLarge,
    /// The client sends the body too slowly.
    SlowBody,
    /// The body is malformed or incomplete.
    BadBody,
    /// The client or its network is banned.
    Banned,
    /// A rate limit or a concurrency limit is exceeded, or the client is locked out.
    Rejected(RejectedRequest),
    /// Too many requests are delayed already.
    TooManyWaiting,
    /// The store returned no decision.
    StoreUnavailable,
    /// The upstream has no server.
    NoServer,
    /// No server can be reached.
    Unreachable,
    /// The certificate of the server is not trusted.
    Untrusted(&'static str),
    /// The server closed the connection early, or sent an invalid response.
    BadUpstreamResponse,
    /// The server did not respond in time.
    UpstreamTimeout,
    /// The breakers of all servers are open.
    BreakerOpen(OpenBreaker),
    /// Too many requests are in flight to the upstream or on the route.
    BulkheadFull,
    /// The upstream is overloaded, and the request is not important enough.
    Overloaded,
    /// The deadline of the client has passed.
    DeadlineExceeded,
}

/// A breaker that is open.
#[derive(Debug)]
pub(crate) struct OpenBreaker {
    /// Seconds until the next probe.
    pub(crate) retry_after: u64,
    /// The response that the policy has for this case.
    pub(crate) response: Option<Arc<FixedResponse>>,
}

/// A fixed response of the policy.
#[derive(Debug)]
pub(crate) struct FixedResponse {
    status: StatusCode,
    /// `None` is the usual error body.
    body: Option<FallbackBody>,
}

impl FixedResponse {
    /// The fixed response of a fallback; `None` if it is another upstream.
    pub(crate) fn new(plan: &FallbackPlan) -> Option<Self> {
        let FallbackPlan::Response { status, body } = plan else { return None };
        let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        Some(Self { status, body: body.clone() })
    }
}

impl From<RequestError> for ServeError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl ServeError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Request(error) => error.status(),
            Self::BadHead | Self::BadBody => StatusCode::BAD_REQUEST,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::Banned => StatusCode::FORBIDDEN,
            Self::Rejected(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::TooManyWaiting
            | Self::StoreUnavailable
            | Self::NoServer
            | Self::BulkheadFull
            | Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::BreakerOpen(open) => {
                open.response.as_ref().map_or(StatusCode::SERVICE_UNAVAILABLE, |fixed| fixed.status)
            }
            Self::Unreachable | Self::Untrusted(_) | Self::BadUpstreamResponse => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimeout | Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// The code for programs and the message for people.
    fn code_and_message(&self) -> (&'static str, Cow<'static, str>) {
        let (code, message) = match self {
            Self::Request(error) => return (error.code(), error.message()),
            Self::BadHead => ("bad_request", "Invalid request line or header."),
            Self::HeadTooLarge => ("head_too_large", "Request line and headers are too large."),
            Self::UriTooLong => ("uri_too_long", "Request URI is too long."),
            Self::TooLarge => ("body_too_large", "Request body is too large."),
            Self::SlowBody => ("body_too_slow", "Request body was sent too slowly."),
            Self::BadBody => ("bad_body", "Request body is malformed or incomplete."),
            Self::Banned => ("banned", "Client is banned."),
            Self::Rejected(RejectedRequest { reason, retry_after, .. }) => {
                return (reason.code(), reason.message(*retry_after).into());
            }
            Self::TooManyWaiting => ("too_many_waiting", "Too many delayed requests. Please retry later."),
            Self::StoreUnavailable => {
                ("store_unavailable", "Rate limit store unavailable. Please retry later.")
            }
            Self::NoServer => ("no_server", "No upstream available. Please retry later."),
            Self::Unreachable => ("upstream_unreachable", "Upstream is unreachable."),
            Self::Untrusted(why) => {
                let message = format!("Upstream certificate is not trusted: {why}.");
                return ("upstream_untrusted", message.into());
            }
            Self::BadUpstreamResponse => {
                ("upstream_failed", "Upstream closed the connection or sent an invalid response.")
            }
            Self::UpstreamTimeout => ("upstream_timeout", "Upstream timed out."),
            Self::BreakerOpen(_) => ("breaker_open", "Upstream is failing. Please retry later."),
            Self::BulkheadFull => ("bulkhead_full", "Too many requests in progress. Please retry later."),
            Self::Overloaded => ("overloaded", "Upstream is overloaded. Please retry later."),
            Self::DeadlineExceeded => ("deadline_exceeded", "The deadline of the request has passed."),
        };
        (code, message.into())
    }

    /// The code for the log, and after how many seconds the client may retry.
    pub(crate) fn code_and_retry_after(&self) -> (&'static str, Option<u64>) {
        match self {
            Self::Rejected(rejected) => (rejected.reason.code(), rejected.retry_after),
            Self::BreakerOpen(open) => ("breaker_open", Some(open.retry_after)),
            _ => (self.code_and_message().0, None),
        }
    }

    /// When the client may retry.
    fn pushback(&self) -> GrpcPushback {
        match self {
            Self::Rejected(RejectedRequest { retry_after: Some(seconds), .. }) => {
                GrpcPushback::Seconds(*seconds)
            }
            Self::Rejected(_) => GrpcPushback::Never,
            // A fixed response with another status is not an error.
            Self::BreakerOpen(open) if self.status().is_server_error() => {
                GrpcPushback::Seconds(open.retry_after)
            }
            Self::TooManyWaiting
            | Self::StoreUnavailable
            | Self::NoServer
            | Self::BulkheadFull
            | Self::Overloaded
            | Self::UpstreamTimeout
            | Self::DeadlineExceeded => GrpcPushback::Seconds(1),
            _ => GrpcPushback::Unknown,
        }
    }

    /// Whether the connection must be closed because the next bytes may not be a request.
    fn closes_connection(&self) -> bool {
        self.status() == StatusCode::BAD_REQUEST
            || matches!(self, Self::HeadTooLarge | Self::UriTooLong | Self::TooLarge | Self::SlowBody)
    }
}

/// A request that is rejected with 429. The body is encoded here because it borrows the rule.
#[derive(Debug)]
pub(crate) struct RejectedRequest {
    reason: RejectionReason,
    /// Seconds after which the request would be admitted; `None` if it never would.
    retry_after: Option<u64>,
    body: Vec<u8>,
}

impl RejectedRequest {
    pub(crate) fn new(
        style: BodyStyle,
        reason: RejectionReason,
        retry_after: Option<u64>,
        limit: ReportedLimit<'_>,
    ) -> Self {
        Self { reason, retry_after, body: reason.error_body(retry_after, limit).encode(style) }
    }
}

/// The response for a request that was not served. Reuses the allocation of the request headers.
pub(crate) fn rescue(
    mut cause: ServeError,
    style: BodyStyle,
    version: Version,
    mut headers: HeaderMap,
) -> Response<ResponseBody> {
    if let Some(content_type) = grpc_content_type(version, &headers).cloned() {
        return rescue_grpc(&cause, content_type, headers);
    }
    let mut content_type = style.content_type();
    let body = match &mut cause {
        ServeError::Rejected(rejected) => std::mem::take(&mut rejected.body),
        ServeError::BreakerOpen(OpenBreaker { response: Some(fixed), .. }) if fixed.body.is_some() => {
            let fixed = fixed.body.as_ref();
            content_type = fixed.map_or(content_type, |body| body.content_type);
            fixed.map(|body| body.content.clone()).unwrap_or_default()
        }
        _ => {
            let (code, message) = cause.code_and_message();
            ErrorBody::new(cause.status(), code, &message).encode(style)
        }
    };
    let mut response = Response::new(ResponseBody::from_bytes(body));
    *response.status_mut() = cause.status();
    headers.clear();
    headers.reserve(HEADERS);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let GrpcPushback::Seconds(seconds) = cause.pushback() {
        write_retry_after(&mut headers, seconds);
    }
    if let ServeError::Request(error) = &cause
        && let Some(challenge) = error.challenge()
    {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    if cause.closes_connection() {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    *response.headers_mut() = headers;
    response
}

/// The same for a gRPC call.
fn rescue_grpc(
    cause: &ServeError,
    content_type: HeaderValue,
    mut headers: HeaderMap,
) -> Response<ResponseBody> {
    let pushback = cause.pushback();
    headers.clear();
    headers.reserve(HEADERS);
    headers.insert(CONTENT_TYPE, content_type);
    // A fixed response is for HTTP: gRPC clients could not read it.
    let status = match cause {
        ServeError::BreakerOpen(_) => StatusCode::SERVICE_UNAVAILABLE,
        cause => cause.status(),
    };
    write_grpc_status(&mut headers, status, &cause.code_and_message().1, pushback);
    if let GrpcPushback::Seconds(seconds) = pushback {
        write_retry_after(&mut headers, seconds);
    }
    let mut response = Response::new(ResponseBody::empty());
    *response.headers_mut() = headers;
    response
}

/// Makes `response` one to HEAD: the same headers, the length included, and no body.
pub(crate) fn omit_body(response: &mut Response<ResponseBody>) {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    *response.body_mut() = ResponseBody::empty();
}
