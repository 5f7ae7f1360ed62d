//! Responses: JSON, and errors with a message, a location and a hint.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use serde_json::json;

pub(crate) type ApiResponse = Response<Full<Bytes>>;

/// A response with a JSON body.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> ApiResponse {
    // This cannot fail: all map keys are strings.
    let mut body = serde_json::to_vec(value).unwrap_or_default();
    body.push(b'\n');
    with_body(status, body, "application/json")
}

pub(crate) fn with_body(
    status: StatusCode,
    body: impl Into<Bytes>,
    content_type: &'static str,
) -> ApiResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// The reason for an error response.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    /// A code for programs.
    code: &'static str,
    /// What is wrong.
    message: String,
    /// The field of the request that is wrong.
    field: Option<&'static str>,
    /// How to fix it.
    hint: String,
    header: Option<(&'static str, &'static str)>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), field: None, hint: String::new(), header: None }
    }

    /// The value of a field is invalid.
    pub(crate) fn invalid_field(field: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, "bad_request", message);
        error.field = Some(field);
        error
    }

    /// Sets how to fix the error.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// The token is missing or invalid.
    pub(crate) fn unauthorized(has_token: bool) -> Self {
        let message = if has_token { "invalid bearer token" } else { "missing bearer token" };
        let mut error = Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
            .hint("send `Authorization: Bearer TOKEN` with the token of the admin API");
        error.header = Some(("www-authenticate", "Bearer"));
        error
    }

    pub(crate) fn method_not_allowed(allowed: &'static str) -> Self {
        let message = format!("method not allowed; use {allowed}");
        let mut error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        error.header = Some(("allow", allowed));
        error
    }

    /// A temporary error: the client may retry after a second.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        error.header = Some(("retry-after", "1"));
        error
    }

    pub(crate) fn into_response(self) -> ApiResponse {
        let mut value = json!({ "error": self.code, "message": self.message });
        if let Some(field) = self.field {
            value["at"] = field.into();
        }
        if !self.hint.is_empty() {
            value["hint"] = self.hint.into();
        }
        let mut response = json(self.status, &value);
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
