//! The response to a request that was not served: the only place that chooses status codes.

use std::sync::Arc;

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, Response, StatusCode, Version};
use http_body::Body;
use tidegate_headers::{
    BodyFormat, BodyStyle, ErrorBody, REQUEST_ID, RefusalEntry, grpc_content_type, write_grpc_status,
    write_retry_after,
};
use tidegate_policy::{FallbackBody, FallbackPlan, RequestError};

use crate::http::response_body::ResponseBody;
use crate::worker::WorkerSnapshot;

/// Capacity for the headers of an error response, the rate-limit headers included.
const HEADERS: usize = 13;

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
    /// The limiter refuses the request.
    Refused(RefusedRequest),
    /// Too many requests are delayed already.
    TooManyWaiting,
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

/// A request that the limiter refuses.
#[derive(Debug)]
pub(crate) struct RefusedRequest {
    pub(crate) refusal: &'static RefusalEntry,
    /// Seconds after which the request would be admitted; `None` if it never would.
    pub(crate) retry_after: Option<u64>,
    /// The status, which a rule may choose.
    pub(crate) status: StatusCode,
    /// Encoded before, because it borrows the rule.
    pub(crate) body: Vec<u8>,
    /// The format of the body.
    pub(crate) format: BodyFormat,
}

const BAD_HEAD: RefusalEntry =
    RefusalEntry::new(StatusCode::BAD_REQUEST, "bad_request", "Invalid request line or header.");
const HEAD_TOO_LARGE: RefusalEntry = RefusalEntry::new(
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    "head_too_large",
    "Request line and headers are too large.",
);
const URI_TOO_LONG: RefusalEntry =
    RefusalEntry::new(StatusCode::URI_TOO_LONG, "uri_too_long", "Request URI is too long.");
const NO_SERVER: RefusalEntry = RefusalEntry::unavailable("no_server", "No upstream available.");
const UNREACHABLE: RefusalEntry =
    RefusalEntry::new(StatusCode::BAD_GATEWAY, "upstream_unreachable", "Upstream is unreachable.");
const UNTRUSTED: RefusalEntry =
    RefusalEntry::new(StatusCode::BAD_GATEWAY, "upstream_untrusted", "Upstream certificate is not trusted.");
const BAD_UPSTREAM_RESPONSE: RefusalEntry = RefusalEntry::new(
    StatusCode::BAD_GATEWAY,
    "upstream_failed",
    "Upstream closed the connection or sent an invalid response.",
);

impl ServeError {
    /// What the client is told; an error of the policy if that says it.
    fn refusal(&self) -> Result<&'static RefusalEntry, &RequestError> {
        Ok(match self {
            Self::Request(error) => return Err(error),
            Self::BadHead => &BAD_HEAD,
            Self::HeadTooLarge => &HEAD_TOO_LARGE,
            Self::UriTooLong => &URI_TOO_LONG,
            Self::TooLarge => &RefusalEntry::BODY_TOO_LARGE,
            Self::SlowBody => &RefusalEntry::BODY_TOO_SLOW,
            Self::BadBody => &RefusalEntry::BAD_BODY,
            Self::Refused(refused) => refused.refusal,
            Self::TooManyWaiting => &RefusalEntry::TOO_MANY_WAITING,
            Self::NoServer => &NO_SERVER,
            Self::Unreachable => &UNREACHABLE,
            Self::Untrusted(_) => &UNTRUSTED,
            Self::BadUpstreamResponse => &BAD_UPSTREAM_RESPONSE,
            Self::UpstreamTimeout => &RefusalEntry::UPSTREAM_TIMEOUT,
            Self::BreakerOpen(_) => &RefusalEntry::BREAKER_OPEN,
            Self::BulkheadFull => &RefusalEntry::BULKHEAD_FULL,
            Self::Overloaded => &RefusalEntry::OVERLOADED,
            Self::DeadlineExceeded => &RefusalEntry::DEADLINE_EXCEEDED,
        })
    }

    /// The fixed response of the policy in place of the usual one.
    fn fixed_response(&self) -> Option<&FixedResponse> {
        match self {
            Self::BreakerOpen(open) => open.response.as_deref(),
            _ => None,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        if let Self::Refused(refused) = self {
            return refused.status;
        }
        let usual = || self.refusal().map_or_else(RequestError::status, |refusal| refusal.status);
        self.fixed_response().map_or_else(usual, |fixed| fixed.status)
    }

    /// The code for the log, and after how many seconds the client may retry.
    pub(crate) fn code_and_retry_after(&self) -> (&'static str, Option<u64>) {
        (self.refusal().map_or_else(RequestError::code, |refusal| refusal.code), self.retry_after())
    }

    /// The seconds after which the client may retry.
    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Refused(refused) => refused.retry_after,
            // A fixed response with another status is not an error.
            Self::BreakerOpen(open) => self.status().is_server_error().then_some(open.retry_after),
            _ => self.refusal().ok()?.retry_after,
        }
    }

    /// Applies `read` to what the client is told.
    fn describe<R>(&self, read: impl FnOnce(ErrorBody<'_>) -> R) -> R {
        match (self.refusal(), self) {
            (Err(error), _) => read(ErrorBody::new(error.status(), error.code(), &error.message())),
            (Ok(refusal), Self::Untrusted(why)) => {
                let message = format!("Upstream certificate is not trusted: {why}.");
                read(ErrorBody { message: &message, ..refusal.body(None, None) })
            }
            (Ok(refusal), Self::Refused(refused)) => {
                read(ErrorBody { status: refused.status, ..refusal.body(refused.retry_after, None) })
            }
            (Ok(refusal), _) => read(refusal.body(self.retry_after(), None)),
        }
    }

    /// Whether the charge of a request is refunded that nothing was sent of: what refuses it is not the client's.
    pub(crate) fn refunds_unsent(&self) -> bool {
        matches!(
            self,
            Self::BreakerOpen(_)
                | Self::BulkheadFull
                | Self::Overloaded
                | Self::TooManyWaiting
                | Self::DeadlineExceeded
        )
    }

    /// Whether the connection must be closed because the next bytes may not be a request.
    fn closes_connection(&self) -> bool {
        self.status() == StatusCode::BAD_REQUEST
            || matches!(self, Self::HeadTooLarge | Self::UriTooLong | Self::TooLarge | Self::SlowBody)
    }
}

/// The response for a request that was not served, with its `id`. Reuses the allocation of the request headers.
pub(crate) fn rescue(
    mut cause: ServeError,
    snapshot: &WorkerSnapshot,
    (version, mut headers): (Version, HeaderMap),
    id: HeaderValue,
) -> Response<ResponseBody> {
    let grpc = grpc_content_type(version, &headers).cloned();
    headers.clear();
    headers.reserve(HEADERS);
    let mut response = match grpc {
        Some(content_type) => rescue_grpc(&cause, content_type, &mut headers),
        None => rescue_http(&mut cause, snapshot.error_body(), &mut headers),
    };
    if let Some(seconds) = cause.retry_after() {
        // The headers of limits have a style of their own for it.
        let is_limited = cause.refusal().is_ok_and(RefusalEntry::is_rejection);
        write_retry_after(&mut headers, seconds, if is_limited { snapshot.styles() } else { &[] });
    }
    headers.insert(REQUEST_ID, id);
    *response.headers_mut() = headers;
    response
}

fn rescue_http(cause: &mut ServeError, style: BodyStyle, headers: &mut HeaderMap) -> Response<ResponseBody> {
    let usual = HeaderValue::from_static(style.content_type());
    let (body, content_type) = match &mut *cause {
        ServeError::Refused(refused) => (std::mem::take(&mut refused.body), refused.format.content_type()),
        cause => match cause.fixed_response().and_then(|fixed| fixed.body.as_ref()) {
            Some(fixed) => (fixed.content.clone(), HeaderValue::from_static(fixed.content_type)),
            None => (cause.describe(|body| body.encode(style)), usual),
        },
    };
    let mut response = Response::new(ResponseBody::from_bytes(body));
    *response.status_mut() = cause.status();
    headers.insert(CONTENT_TYPE, content_type);
    if let ServeError::Request(error) = &cause
        && let Some(challenge) = error.challenge()
    {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    if cause.closes_connection() {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The same for a gRPC call. A fixed response is for HTTP: gRPC clients could not read it.
fn rescue_grpc(
    cause: &ServeError,
    content_type: HeaderValue,
    headers: &mut HeaderMap,
) -> Response<ResponseBody> {
    headers.insert(CONTENT_TYPE, content_type);
    cause.describe(|body| write_grpc_status(headers, body.status, &body.full_message(), body.retry_after));
    Response::new(ResponseBody::empty())
}

/// Makes `response` one to HEAD: the same headers, the length included, and no body.
pub(crate) fn omit_body(response: &mut Response<ResponseBody>) {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    *response.body_mut() = ResponseBody::empty();
}
