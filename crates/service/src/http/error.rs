//! The responses to requests that are not answered with a decision: the only place that chooses their status codes.

use std::borrow::Cow;

use http::StatusCode;
use http::header::{ALLOW, HeaderValue, WWW_AUTHENTICATE};
use tidegate_headers::{BodyStyle, ErrorBody, write_retry_after};
use tidegate_policy::{ActivePolicy, ClientNameError, RequestError};

use super::response::HttpResponse;

/// `Retry-After` of errors that are likely to be over soon.
const RETRY_SECONDS: u64 = 1;
/// How many rules of the policy an error about an unknown rule names.
const LISTED_RULES: usize = 10;

/// Why a request is not answered with a decision.
#[derive(Debug)]
pub(super) enum HttpError {
    /// The path is not one of an endpoint.
    NoEndpoint,
    /// The endpoint has other methods.
    Method { allowed: &'static str },
    /// The token is missing or wrong; the header has to contain it.
    Token { header: &'static str },
    /// The peer may not describe the requests of others.
    UntrustedPeer,
    /// The host is a name that a web site may have given to this machine.
    ForeignHost,
    /// The body is not JSON.
    MediaType,
    /// The body is longer than `max` bytes.
    TooLarge { max: usize },
    /// The body did not arrive in time.
    SlowBody,
    /// The body is malformed or incomplete.
    BadBody,
    /// A header cannot be used.
    BadHeader,
    /// The body is not valid JSON, or has unknown or missing fields.
    Json(serde_json::Error),
    /// The fields contradict each other, or a value is invalid.
    Invalid(Cow<'static, str>),
    /// The client's name is invalid.
    Client(ClientNameError),
    /// The request to be checked is ambiguous, or has a token or an API key that is not valid.
    Request(RequestError),
    /// The policy has no such rule.
    NoRule { rule: String },
    /// The policy has no such rule, but these.
    NoRuleAmong { rule: String, names: String },
    /// The reservation is unknown, committed or expired.
    NoReservation,
    /// Too many reservations are open.
    TooManyReservations,
    /// The client is banned.
    Banned,
    /// Too many requests are delayed.
    TooManyDelayed,
    /// The store returned no decision.
    StoreUnavailable,
}

impl From<RequestError> for HttpError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl HttpError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::NoEndpoint | Self::NoRule { .. } | Self::NoRuleAmong { .. } | Self::NoReservation => {
                StatusCode::NOT_FOUND
            }
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Token { .. } => StatusCode::UNAUTHORIZED,
            Self::Request(error) => error.status(),
            Self::UntrustedPeer | Self::ForeignHost | Self::Banned => StatusCode::FORBIDDEN,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::BadBody | Self::BadHeader | Self::Json(_) | Self::Invalid(_) | Self::Client(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::TooManyReservations | Self::TooManyDelayed | Self::StoreUnavailable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// The code for logs and for bodies that are not problems.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::NoEndpoint => "not_found",
            Self::Method { .. } => "method_not_allowed",
            Self::Token { .. } => "unauthorized",
            Self::Request(error) => error.code(),
            Self::UntrustedPeer => "untrusted_peer",
            Self::ForeignHost => "foreign_host",
            Self::MediaType => "unsupported_media_type",
            Self::TooLarge { .. } => "body_too_large",
            Self::SlowBody => "body_too_slow",
            Self::BadBody => "bad_body",
            Self::BadHeader => "bad_header",
            Self::Json(error) if !error.is_data() => "bad_json",
            Self::Json(_) | Self::Invalid(_) | Self::Client(_) => "bad_request",
            Self::NoRule { .. } | Self::NoRuleAmong { .. } => "no_rule",
            Self::NoReservation => "no_reservation",
            Self::TooManyReservations => "too_many_reservations",
            Self::Banned => "banned",
            Self::TooManyDelayed => "too_many_waiting",
            Self::StoreUnavailable => "store_unavailable",
        }
    }

    fn message(&self) -> Cow<'_, str> {
        let text = match self {
            Self::NoEndpoint => "Unknown path. GET /openapi.json lists all paths.",
            Self::Method { allowed } => return format!("Method not allowed. Use {allowed}.").into(),
            Self::Token { header } => {
                return format!("The token is missing or wrong. Send it in the header `{header}`.").into();
            }
            Self::UntrustedPeer => {
                "Only trusted proxies may ask about the requests of others. Add the address of this proxy to \
                 `service.trusted_peers`."
            }
            Self::ForeignHost => {
                "Without a token, a request from this machine must name an address or `localhost` as its host. Use 127.0.0.1 or \
                 localhost in the URL, or configure a `token_file`."
            }
            Self::MediaType => "The body must be JSON. Send `Content-Type: application/json`.",
            Self::TooLarge { max } => {
                return format!("The body is too large. Send at most {} KiB.", max >> 10).into();
            }
            Self::SlowBody => "The body was sent too slowly.",
            Self::BadBody => "The body is malformed or incomplete.",
            Self::BadHeader => "A header is malformed or too long.",
            Self::Json(error) if error.is_data() => return format!("Invalid request: {error}.").into(),
            Self::Json(error) => return format!("Invalid JSON: {error}.").into(),
            Self::Invalid(what) => return format!("Invalid request: {what}.").into(),
            Self::Client(error) => return format!("Invalid client: {error}.").into(),
            Self::Request(error) => return error.message(),
            Self::NoRule { rule } => return format!("The policy has no rate limit named `{rule}`.").into(),
            Self::NoRuleAmong { rule, names } => {
                return format!("The policy has no rate limit named `{rule}`. It has {names}.").into();
            }
            Self::NoReservation => {
                "No such reservation. It is unknown here, was committed before, or has expired."
            }
            Self::TooManyReservations => "Too many open reservations. Commit them, or use a shorter `ttl`.",
            Self::Banned => "Client is banned.",
            Self::TooManyDelayed => "Too many delayed requests. Please retry later.",
            Self::StoreUnavailable => "Rate limit store unavailable. Please retry later.",
        };
        text.into()
    }

    /// Adds the names of the rules that a client may have meant.
    pub(super) fn with_rule_names(self, policy: &ActivePolicy) -> Self {
        let Self::NoRule { rule } = self else { return self };
        let limits = &policy.matcher.plan().rate_limits;
        let listed: Vec<_> =
            limits.iter().take(LISTED_RULES).map(|rule| format!("`{}`", rule.name)).collect();
        if listed.is_empty() {
            return Self::NoRule { rule };
        }
        let others = limits.iter().count() - listed.len();
        let names = match others {
            0 => listed.join(", "),
            _ => format!("{} and {others} others", listed.join(", ")),
        };
        Self::NoRuleAmong { rule, names }
    }

    /// The error as JSON.
    pub(super) fn encode(&self, style: BodyStyle) -> Vec<u8> {
        ErrorBody::new(self.status(), self.code(), &self.message()).encode(style)
    }

    /// The response, with a body in `style`.
    pub(super) fn into_response(self, style: BodyStyle) -> HttpResponse {
        let mut response = HttpResponse::new(style.content_type(), self.encode(style));
        response.status = self.status();
        let headers = &mut response.headers;
        match self {
            Self::Method { allowed } => drop(headers.insert(ALLOW, HeaderValue::from_static(allowed))),
            Self::Token { .. } => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Request(error) => {
                if let Some(challenge) = error.challenge() {
                    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
                }
            }
            _ if response.status == StatusCode::SERVICE_UNAVAILABLE => {
                write_retry_after(headers, RETRY_SECONDS);
            }
            _ => {}
        }
        response
    }
}

/// An invalid request.
pub(super) fn invalid(what: impl Into<Cow<'static, str>>) -> HttpError {
    HttpError::Invalid(what.into())
}
