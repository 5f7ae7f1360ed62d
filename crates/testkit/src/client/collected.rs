//! Responses that hyper has received.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use crate::wait::soon;

/// A response that was read to its end.
#[derive(Debug)]
pub struct CollectedResponse {
    /// The status code.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The complete body.
    pub body: Bytes,
    /// The trailers, if there were any.
    pub trailers: Option<HeaderMap>,
}

impl CollectedResponse {
    /// Reads the body to its end.
    pub async fn of(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let collected = soon(body.collect()).await.expect("a complete body");
        let trailers = collected.trailers().cloned();
        Self { status: parts.status, headers: parts.headers, body: collected.to_bytes(), trailers }
    }

    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a header of ASCII"))
    }

    /// A header whose value is a number.
    pub fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("a body of UTF-8")
    }
}
