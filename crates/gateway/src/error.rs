//! What a client reads when its request was not served: the only place that chooses status codes.

use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode, Version};
use serde_json::json;
use tidegate_policy::{ErrorBody, HeaderError, PathError};

use crate::http::grpc::{self, Pushback};
use crate::http::response_body::ResponseBody;
use crate::refusal::Refusal;

/// Headers that a refusal has, ours and those that are written last.
const HEADERS: usize = 12;

/// Why a request was not served.
#[derive(Debug)]
pub(crate) enum Cause {
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
    /// A limit is used up, its client is locked out, or has too much under way.
    Refused(Refusal),
    /// Too many wait already.
    TooManyWaiting,
    /// The store gave no decision.
    Undecided,
    /// The upstream has no server that can be asked.
    NoServer,
    /// The server cannot be reached.
    Unreachable,
    /// The server's certificate is not to be trusted.
    Untrusted(&'static str),
    /// The server broke off, or did not answer in HTTP.
    BadAnswer,
    /// The server did not answer in time.
    TooSlow,
}

impl Cause {
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
            Self::Refused(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::TooManyWaiting | Self::Undecided | Self::NoServer => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unreachable | Self::Untrusted(_) | Self::BadAnswer => StatusCode::BAD_GATEWAY,
            Self::TooSlow => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// A word for programs and a sentence for people.
    fn words(&self) -> (&'static str, String) {
        let (code, message) = match self {
            Self::Path(error) => return ("bad_path", format!("The path cannot be used: {error}.")),
            Self::Framing(what) => return ("bad_request", format!("The request cannot be used: {what}.")),
            Self::Headers(error) => return ("bad_request", format!("The request cannot be used: {error}.")),
            Self::BadHead => ("bad_request", "The request line or a header is not valid HTTP."),
            Self::HeadTooLarge => ("head_too_large", "The request line and headers are too large."),
            Self::UriTooLong => ("uri_too_long", "The URI of the request is too long."),
            Self::TooLarge => ("body_too_large", "The body is too large."),
            Self::SlowBody => ("body_too_slow", "The body came too slowly."),
            Self::BadBody => ("bad_body", "The body is malformed or ends too early."),
            Self::NoRoute => ("no_route", "Nothing is served here."),
            Self::Banned => ("banned", "This client may not use the service."),
            Self::Refused(Refusal { reason, retry_after, .. }) => {
                return (reason.code(), reason.message(*retry_after));
            }
            Self::TooManyWaiting => {
                ("too_many_waiting", "Too many requests are waiting. Please retry later.")
            }
            Self::Undecided => ("undecided", "No decision could be made. Please retry later."),
            Self::NoServer => ("no_server", "The service has no server at hand. Please retry later."),
            Self::Unreachable => ("upstream_unreachable", "The service cannot be reached."),
            Self::Untrusted(why) => {
                let message = format!("The certificate of the service is not to be trusted: {why}.");
                return ("upstream_untrusted", message);
            }
            Self::BadAnswer => ("upstream_failed", "The service gave no valid answer."),
            Self::TooSlow => ("upstream_timeout", "The service did not answer in time."),
        };
        (code, message.to_owned())
    }

    /// What operators are told: the word for programs, and when the client may come back.
    pub(crate) fn told(&self) -> (&'static str, Option<u64>) {
        match self {
            Self::Refused(refusal) => (refusal.reason.code(), refusal.retry_after),
            _ => (self.words().0, None),
        }
    }

    /// When the client may try again.
    fn pushback(&self) -> Pushback {
        match self {
            Self::Refused(Refusal { retry_after: Some(seconds), .. }) => Pushback::Seconds(*seconds),
            Self::Refused(_) => Pushback::Never,
            Self::TooManyWaiting | Self::Undecided | Self::NoServer => Pushback::Seconds(1),
            _ => Pushback::Unknown,
        }
    }

    /// Whether what follows on the connection cannot be trusted to be a request.
    fn ends_the_connection(&self) -> bool {
        self.status() == StatusCode::BAD_REQUEST
            || matches!(self, Self::HeadTooLarge | Self::UriTooLong | Self::TooLarge | Self::SlowBody)
    }
}

/// The response for a request that was not served. Its headers are put where those of the request were.
pub(crate) fn rescue(
    mut cause: Cause,
    style: ErrorBody,
    version: Version,
    mut headers: HeaderMap,
) -> Response<ResponseBody> {
    if let Some(content_type) = grpc::content_type(version, &headers).cloned() {
        return rescue_grpc(&cause, content_type, headers);
    }
    let (body, content_type) = match &mut cause {
        Cause::Refused(refusal) => (std::mem::take(&mut refusal.body), refusal.content_type),
        _ => plain(&cause, style),
    };
    let mut response = Response::new(ResponseBody::of(body));
    *response.status_mut() = cause.status();
    headers.clear();
    headers.reserve(HEADERS);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Pushback::Seconds(seconds) = cause.pushback() {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    if cause.ends_the_connection() {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    *response.headers_mut() = headers;
    response
}

/// The same for a gRPC call.
fn rescue_grpc(cause: &Cause, content_type: HeaderValue, mut headers: HeaderMap) -> Response<ResponseBody> {
    let pushback = cause.pushback();
    headers.clear();
    headers.reserve(HEADERS);
    headers.insert(CONTENT_TYPE, content_type);
    grpc::write_status(&mut headers, cause.status(), &cause.words().1, pushback);
    if let Pushback::Seconds(seconds) = pushback {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    let mut response = Response::new(ResponseBody::empty());
    *response.headers_mut() = headers;
    response
}

fn plain(cause: &Cause, style: ErrorBody) -> (Vec<u8>, &'static str) {
    let (code, message) = cause.words();
    let (value, content_type) = match style {
        ErrorBody::Flat => (json!({ "error": code, "message": message }), "application/json"),
        ErrorBody::Nested => {
            (json!({ "error": { "code": code.to_uppercase(), "message": message } }), "application/json")
        }
        ErrorBody::Problem => {
            let status = cause.status();
            let title = status.canonical_reason().unwrap_or_default();
            let value = json!({ "title": title, "status": status.as_u16(), "detail": message });
            (value, "application/problem+json")
        }
    };
    let mut body = value.to_string().into_bytes();
    body.push(b'\n');
    (body, content_type)
}
