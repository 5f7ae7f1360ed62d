//! The responses to requests that are not answered with a decision: the only place that chooses their status codes. Those that other
//! interfaces have, too, are in the catalogue.

use std::borrow::Cow;

use http::StatusCode;
use http::header::{ALLOW, HeaderValue, WWW_AUTHENTICATE};
use tidegate_headers::{BodyStyle, ErrorBody, RefusalEntry};
use tidegate_policy::{ActivePolicy, ClientNameError, RequestError};

use super::response::HttpResponse;
use crate::client::rule_names;

/// Why a request is not answered with a decision.
#[derive(Debug)]
pub(super) enum HttpError {
    /// The same for all interfaces, or always the same.
    Refused(&'static RefusalEntry),
    /// The endpoint has other methods.
    Method { allowed: &'static str },
    /// The token is missing or wrong; the header has to contain it.
    Token { header: &'static str },
    /// The body is longer than `max` bytes.
    TooLarge { max: usize },
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
}

impl From<RequestError> for HttpError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl HttpError {
    /// The path is not one of an endpoint.
    pub(super) const NO_ENDPOINT: Self = Self::Refused(&RefusalEntry::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "Unknown path. GET /openapi.json lists all paths.",
    ));
    /// The peer may not describe the requests of others.
    pub(super) const UNTRUSTED_PEER: Self = Self::Refused(&RefusalEntry::new(
        StatusCode::FORBIDDEN,
        "untrusted_peer",
        "Only trusted proxies may ask about the requests of others. Add the address of this proxy to `service.trusted_peers`.",
    ));
    /// The host is a name that a web site may have given to this machine.
    pub(super) const FOREIGN_HOST: Self = Self::Refused(&RefusalEntry::new(
        StatusCode::FORBIDDEN,
        "foreign_host",
        "Without a token, a request from this machine must name an address or `localhost` as its host. Use 127.0.0.1 or localhost \
         in the URL, or configure a `token_file`.",
    ));
    /// The body is not JSON.
    pub(super) const MEDIA_TYPE: Self = Self::Refused(&RefusalEntry::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        "The body must be JSON. Send `Content-Type: application/json`.",
    ));
    /// The body did not arrive in time.
    pub(super) const SLOW_BODY: Self = Self::Refused(&RefusalEntry::BODY_TOO_SLOW);
    /// The body is malformed or incomplete.
    pub(super) const BAD_BODY: Self = Self::Refused(&RefusalEntry::BAD_BODY);
    /// A header cannot be used.
    pub(super) const BAD_HEADER: Self = Self::Refused(&RefusalEntry::new(
        StatusCode::BAD_REQUEST,
        "bad_header",
        "A header is malformed or too long.",
    ));
    /// The reservation is unknown, committed or expired.
    pub(super) const NO_RESERVATION: Self = Self::Refused(&RefusalEntry::new(
        StatusCode::NOT_FOUND,
        "no_reservation",
        "No such reservation. It is unknown here, was committed before, or has expired.",
    ));
    /// Too many reservations are open.
    pub(super) const TOO_MANY_RESERVATIONS: Self = Self::Refused(&RefusalEntry::unavailable(
        "too_many_reservations",
        "Too many open reservations. Commit them, or use a shorter `ttl`.",
    ));
    /// Too many requests are delayed.
    pub(super) const TOO_MANY_WAITING: Self = Self::Refused(&RefusalEntry::TOO_MANY_WAITING);
    /// The store returned no decision.
    pub(super) const STORE_UNAVAILABLE: Self = Self::Refused(&RefusalEntry::STORE_UNAVAILABLE);

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Refused(refusal) => refusal.status,
            Self::NoRule { .. } | Self::NoRuleAmong { .. } => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Token { .. } => StatusCode::UNAUTHORIZED,
            Self::Request(error) => error.status(),
            Self::TooLarge { .. } => RefusalEntry::BODY_TOO_LARGE.status,
            Self::Json(_) | Self::Invalid(_) | Self::Client(_) => StatusCode::BAD_REQUEST,
        }
    }

    /// The code for logs and for bodies that are not problems.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.code,
            Self::Method { .. } => "method_not_allowed",
            Self::Token { .. } => "unauthorized",
            Self::Request(error) => error.code(),
            Self::TooLarge { .. } => RefusalEntry::BODY_TOO_LARGE.code,
            Self::Json(error) if !error.is_data() => "bad_json",
            Self::Json(_) | Self::Invalid(_) | Self::Client(_) => "bad_request",
            Self::NoRule { .. } | Self::NoRuleAmong { .. } => "no_rule",
        }
    }

    /// Applies `read` to what the client is told.
    fn describe<R>(&self, read: impl FnOnce(&ErrorBody<'_>) -> R) -> R {
        let message = match self {
            Self::Refused(refusal) => return read(&refusal.body(refusal.retry_after, None)),
            Self::Method { allowed } => format!("Method not allowed. Use {allowed}."),
            Self::Token { header } => {
                format!("The token is missing or wrong. Send it in the header `{header}`.")
            }
            Self::TooLarge { max } => format!("The body is too large. Send at most {} KiB.", max >> 10),
            Self::Json(error) if error.is_data() => format!("Invalid request: {error}."),
            Self::Json(error) => format!("Invalid JSON: {error}."),
            Self::Invalid(what) => format!("Invalid request: {what}."),
            Self::Client(error) => format!("Invalid client: {error}."),
            Self::Request(error) => error.message().into_owned(),
            Self::NoRule { rule } => format!("The policy has no rate limit named `{rule}`."),
            Self::NoRuleAmong { rule, names } => {
                format!("The policy has no rate limit named `{rule}`. It has {names}.")
            }
        };
        read(&ErrorBody::new(self.status(), self.code(), &message))
    }

    /// Adds the names of the rules that a client may have meant.
    pub(super) fn with_rule_names(self, policy: &ActivePolicy) -> Self {
        let Self::NoRule { rule } = self else { return self };
        match rule_names(policy) {
            names if names.is_empty() => Self::NoRule { rule },
            names => Self::NoRuleAmong { rule, names },
        }
    }

    /// The error as JSON.
    pub(super) fn encode(&self, style: BodyStyle) -> Vec<u8> {
        self.describe(|body| body.encode(style))
    }

    /// The response, with a body in `style`.
    pub(super) fn into_response(self, style: BodyStyle) -> HttpResponse {
        let mut response = self.describe(|body| HttpResponse::error(body, &style.into(), &[]));
        let (name, value) = match self {
            Self::Method { allowed } => (ALLOW, allowed),
            Self::Token { .. } => (WWW_AUTHENTICATE, "Bearer"),
            Self::Request(error) => match error.challenge() {
                Some(challenge) => (WWW_AUTHENTICATE, challenge),
                None => return response,
            },
            _ => return response,
        };
        response.headers.insert(name, HeaderValue::from_static(value));
        response
    }
}

/// An invalid request.
pub(super) fn invalid(what: impl Into<Cow<'static, str>>) -> HttpError {
    HttpError::Invalid(what.into())
}
