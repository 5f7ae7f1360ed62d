//! What is answered: JSON, and errors that say what is wrong, where, and what to do.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use serde_json::json;

pub(crate) type ApiResponse = Response<Full<Bytes>>;

/// A good answer.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> ApiResponse {
    // What we answer with has no keys that are not text, so this cannot fail.
    let mut body = serde_json::to_vec(value).unwrap_or_default();
    body.push(b'\n');
    with(status, body, "application/json")
}

pub(crate) fn with(status: StatusCode, body: impl Into<Bytes>, content_type: &'static str) -> ApiResponse {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    answer
}

/// Why something was not done.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    /// A word for programs.
    code: &'static str,
    /// What is wrong.
    what: String,
    /// Where in the request.
    at: Option<&'static str>,
    /// What to do.
    hint: String,
    header: Option<(&'static str, &'static str)>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, what: impl Into<String>) -> Self {
        Self { status, code, what: what.into(), at: None, hint: String::new(), header: None }
    }

    /// A value in the body that cannot be.
    pub(crate) fn bad(at: &'static str, what: impl Into<String>) -> Self {
        let mut refusal = Self::new(StatusCode::BAD_REQUEST, "bad_request", what);
        refusal.at = Some(at);
        refusal
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    pub(crate) fn no_token(is_wrong: bool) -> Self {
        let what = if is_wrong { "the token is wrong" } else { "a token is wanted" };
        let mut refusal = Self::new(StatusCode::UNAUTHORIZED, "unauthorized", what)
            .hint("send `Authorization: Bearer TOKEN`, with the token of the admin API");
        refusal.header = Some(("www-authenticate", "Bearer"));
        refusal
    }

    pub(crate) fn method(allowed: &'static str) -> Self {
        let what = format!("this path takes {allowed}");
        let mut refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what);
        refusal.header = Some(("allow", allowed));
        refusal
    }

    /// Asking again soon may help.
    pub(crate) fn unavailable(code: &'static str, what: impl Into<String>) -> Self {
        let mut refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, what);
        refusal.header = Some(("retry-after", "1"));
        refusal
    }

    pub(crate) fn into_answer(self) -> ApiResponse {
        let mut value = json!({ "error": self.code, "message": self.what });
        if let Some(at) = self.at {
            value["at"] = at.into();
        }
        if !self.hint.is_empty() {
            value["hint"] = self.hint.into();
        }
        let mut answer = json(self.status, &value);
        if let Some((name, value)) = self.header {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}
