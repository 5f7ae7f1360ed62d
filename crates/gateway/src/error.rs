//! The response to a request that was not served: the only place that chooses status codes.

use std::borrow::Cow;

use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode, Version};
use tidegate_headers::{BodyStyle, ErrorBody, RejectionReason, ReportedLimit, write_retry_after};
use tidegate_policy::{HeaderError, PathError};

use crate::http::grpc::{self, Pushback};
use crate::http::response_body::ResponseBody;

/// The headers of a rejection: ours, and those that are written last.
const HEADERS: usize = 12;

/// Why a request was not served.
#[derive(Debug)]
pub(crate) enum ServeError {
    /// Its path has no single meaning.
    Path(PathError),
    /// It cannot be told how long it is, or whom it is for.
    Framing(&'static str),
    /// Its headers name two clients.
    Headers(HeaderError),
    /// HTTP cannot parse its head.
    BadHead,
    /// Its head has more bytes or fields than we take.
    HeadTooLarge,
    /// Its URI is longer than we take.
    UriTooLong,
    /// Its body is longer than we take.
    TooLarge,
    /// Its body comes too slowly.
    SlowBody,
    /// Its body is malformed, or ends too early.
    BadBody,
    /// No route takes it.
    NoRoute,
    /// An operator banned its client or its network.
    Banned,
    /// A limit is used up, its client is locked out, or too many of its requests are being served.
    Rejected(RejectedRequest),
    /// Too many wait already.
    TooManyWaiting,
    /// The store gave no decision.
    StoreUnavailable,
    /// The upstream has no server that can be asked.
    NoServer,
    /// The server cannot be reached.
    Unreachable,
    /// The server's certificate is not to be trusted.
    Untrusted(&'static str),
    /// The server broke off, or did not answer in HTTP.
    BadUpstreamResponse,
    /// The server did not answer in time.
    UpstreamTimeout,
}

impl ServeError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Path(_) | Self::Framing(_) | Self::Headers(_) | Self::BadHead | Self::BadBody => {
                StatusCode::BAD_REQUEST
            }
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Banned => StatusCode::FORBIDDEN,
            Self::Rejected(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::TooManyWaiting | Self::StoreUnavailable | Self::NoServer => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unreachable | Self::Untrusted(_) | Self::BadUpstreamResponse => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// The code for programs and the message for people.
    fn code_and_message(&self) -> (&'static str, Cow<'static, str>) {
        let (code, message) = match self {
            Self::Path(error) => return ("bad_path", format!("The path cannot be used: {error}.").into()),
            Self::Framing(what) => {
                return ("bad_request", format!("The request cannot be used: {what}.").into());
            }
            Self::Headers(error) => {
                return ("bad_request", format!("The request cannot be used: {error}.").into());
            }
            Self::BadHead => ("bad_request", "The request line or a header is not valid HTTP."),
            Self::HeadTooLarge => ("head_too_large", "The request line and headers are too large."),
            Self::UriTooLong => ("uri_too_long", "The URI of the request is too long."),
            Self::TooLarge => ("body_too_large", "The body is too large."),
            Self::SlowBody => ("body_too_slow", "The body came too slowly."),
            Self::BadBody => ("bad_body", "The body is malformed or ends too early."),
            Self::NoRoute => ("no_route", "Nothing is served here."),
            Self::Banned => ("banned", "This client may not use the service."),
            Self::Rejected(RejectedRequest { reason, retry_after, .. }) => {
                return (reason.code(), reason.message(*retry_after).into());
            }
            Self::TooManyWaiting => {
                ("too_many_waiting", "Too many requests are waiting. Please retry later.")
            }
            Self::StoreUnavailable => ("undecided", "No decision could be made. Please retry later."),
            Self::NoServer => ("no_server", "The service has no server at hand. Please retry later."),
            Self::Unreachable => ("upstream_unreachable", "The service cannot be reached."),
            Self::Untrusted(why) => {
                let message = format!("The certificate of the service is not to be trusted: {why}.");
                return ("upstream_untrusted", message.into());
            }
            Self::BadUpstreamResponse => ("upstream_failed", "The service gave no valid answer."),
            Self::UpstreamTimeout => ("upstream_timeout", "The service did not answer in time."),
        };
        (code, message.into())
    }

    /// What operators see: the code for programs, and when the client may retry.
    pub(crate) fn code_and_retry_after(&self) -> (&'static str, Option<u64>) {
        match self {
            Self::Rejected(rejected) => (rejected.reason.code(), rejected.retry_after),
            _ => (self.code_and_message().0, None),
        }
    }

    /// When the client may try again.
    fn pushback(&self) -> Pushback {
        match self {
            Self::Rejected(RejectedRequest { retry_after: Some(seconds), .. }) => Pushback::Seconds(*seconds),
            Self::Rejected(_) => Pushback::Never,
            Self::TooManyWaiting | Self::StoreUnavailable | Self::NoServer => Pushback::Seconds(1),
            _ => Pushback::Unknown,
        }
    }

    /// Whether what follows on the connection cannot be trusted to be a request.
    fn closes_connection(&self) -> bool {
        self.status() == StatusCode::BAD_REQUEST
            || matches!(self, Self::HeadTooLarge | Self::UriTooLong | Self::TooLarge | Self::SlowBody)
    }
}

/// A request that is rejected with 429. Its body is written while the rule is borrowed.
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

/// The response for a request that was not served. Its headers are put where those of the request were.
pub(crate) fn rescue(
    mut cause: ServeError,
    style: BodyStyle,
    version: Version,
    mut headers: HeaderMap,
) -> Response<ResponseBody> {
    if let Some(content_type) = grpc::content_type(version, &headers).cloned() {
        return rescue_grpc(&cause, content_type, headers);
    }
    let body = if let ServeError::Rejected(rejected) = &mut cause {
        std::mem::take(&mut rejected.body)
    } else {
        let (code, message) = cause.code_and_message();
        ErrorBody::new(cause.status(), code, &message).encode(style)
    };
    let mut response = Response::new(ResponseBody::from_bytes(body));
    *response.status_mut() = cause.status();
    headers.clear();
    headers.reserve(HEADERS);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(style.content_type()));
    if let Pushback::Seconds(seconds) = cause.pushback() {
        write_retry_after(&mut headers, seconds);
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
    grpc::write_status(&mut headers, cause.status(), &cause.code_and_message().1, pushback);
    if let Pushback::Seconds(seconds) = pushback {
        write_retry_after(&mut headers, seconds);
    }
    let mut response = Response::new(ResponseBody::empty());
    *response.headers_mut() = headers;
    response
}
