//! What a client reads when its request was not served: the only place that chooses status codes.

use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use serde_json::json;
use tidegate_policy::{ErrorBody, HeaderError, PathError};

use crate::body::ResponseBody;
use crate::exclusion::Exclusion;
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
    /// Its body is longer than we take.
    TooLarge,
    /// Its body comes too slowly.
    SlowBody,
    /// No route takes it.
    NoRoute,
    /// An operator banned its client or its network.
    Banned,
    /// A limit is used up.
    Refused(Refusal),
    /// Its client is locked out, or has too much under way.
    Excluded(Box<Exclusion>),
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
    fn status(&self) -> StatusCode {
        match self {
            Self::Path(_) | Self::Framing(_) | Self::Headers(_) => StatusCode::BAD_REQUEST,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Banned => StatusCode::FORBIDDEN,
            Self::Refused(_) | Self::Excluded(_) => StatusCode::TOO_MANY_REQUESTS,
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
            Self::TooLarge => ("body_too_large", "The body is too large."),
            Self::SlowBody => ("body_too_slow", "The body came too slowly."),
            Self::NoRoute => ("no_route", "Nothing is served here."),
            Self::Banned => ("banned", "This client may not use the service."),
            Self::Refused(_) => ("rate_limit_exceeded", "Too many requests."),
            Self::Excluded(exclusion) => return exclusion.words(),
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
        let retry_after = match self {
            Self::Refused(refusal) => refusal.retry_after,
            Self::Excluded(exclusion) => Some(exclusion.retry_after),
            _ => None,
        };
        (self.words().0, retry_after)
    }

    /// Whether what follows on the connection cannot be trusted to be a request.
    fn ends_the_connection(&self) -> bool {
        matches!(self, Self::Framing(_) | Self::TooLarge | Self::SlowBody)
    }
}

/// The response for a request that was not served. Its headers are put where those of the request were.
pub(crate) fn rescue(mut cause: Cause, style: ErrorBody, mut headers: HeaderMap) -> Response<ResponseBody> {
    let (body, content_type) = match &mut cause {
        Cause::Refused(refusal) => (std::mem::take(&mut refusal.body), refusal.content_type),
        Cause::Excluded(exclusion) => exclusion.body(style),
        _ => plain(&cause, style),
    };
    let mut response = Response::new(ResponseBody::of(body));
    *response.status_mut() = cause.status();
    headers.clear();
    headers.reserve(HEADERS);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    match &cause {
        Cause::Refused(refusal) => {
            if let Some(seconds) = refusal.retry_after {
                headers.insert(RETRY_AFTER, seconds.into());
            }
        }
        Cause::Excluded(exclusion) => {
            headers.insert(RETRY_AFTER, exclusion.retry_after.into());
        }
        Cause::TooManyWaiting | Cause::Undecided | Cause::NoServer => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ if cause.ends_the_connection() => {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
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
