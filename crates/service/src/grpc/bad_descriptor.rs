//! Requests that the gateway would reject with 400.
//!
//! A call that fails lets the request pass if the caller is configured so (`failure_mode_deny: false` of Envoy). What a client
//! may have chosen therefore never fails a call: the call is answered with `OVER_LIMIT`, and a body says what is wrong.

use std::borrow::Cow;

use http::StatusCode;
use http::header::CONTENT_TYPE;
use tidegate_headers::{BodyStyle, ErrorBody};
use tidegate_policy::RequestError;

use super::message::{AddedHeader, DescriptorStatus, RateLimitResponse, ResponseCode};
use super::status::GrpcError;

/// Why a call has no decision.
#[derive(Debug)]
pub(super) enum RlsError {
    /// The call fails. Clients of the caller cannot cause this.
    Call(GrpcError),
    /// The call is answered with `OVER_LIMIT`.
    Descriptor(BadDescriptor),
}

/// A descriptor of a request that is rejected without a decision.
#[derive(Debug)]
pub(super) struct BadDescriptor {
    /// The code for programs, as the gateway has it.
    code: &'static str,
    /// A sentence for people.
    message: Cow<'static, str>,
    /// Its position, and the number of descriptors of the call; `None` if they were not read.
    position: Option<(usize, usize)>,
}

impl BadDescriptor {
    pub(super) fn new(what: impl std::fmt::Display) -> Self {
        Self { code: "bad_request", message: format!("Invalid request: {what}.").into(), position: None }
    }

    /// A request whose descriptors are too long to be read.
    pub(super) fn too_large() -> Self {
        let message = "Request line and headers are too large.".into();
        Self { code: "head_too_large", message, position: None }
    }

    /// States which descriptor of how many it is.
    pub(super) fn at(self, position: usize, descriptors: usize) -> Self {
        Self { position: Some((position, descriptors)), ..self }
    }

    /// The code for logs.
    pub(super) fn code(&self) -> &'static str {
        self.code
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// The response that makes the caller reject the request, with a body of the policy's style.
    pub(super) fn response(&self, style: BodyStyle) -> RateLimitResponse {
        let (own, descriptors) = self.position.unwrap_or_default();
        let status = |position| {
            let code = if position == own { ResponseCode::OverLimit } else { ResponseCode::Ok };
            DescriptorStatus { code: code.into(), ..DescriptorStatus::default() }
        };
        // The status with which Envoy rejects requests.
        let body = ErrorBody::new(StatusCode::TOO_MANY_REQUESTS, self.code, &self.message);
        let content_type =
            AddedHeader { key: CONTENT_TYPE.as_str().to_owned(), value: style.content_type().to_owned() };
        RateLimitResponse {
            overall_code: ResponseCode::OverLimit.into(),
            statuses: (0..descriptors).map(status).collect(),
            response_headers_to_add: vec![content_type],
            raw_body: body.encode(style),
            ..RateLimitResponse::default()
        }
    }
}

impl From<RequestError> for BadDescriptor {
    fn from(error: RequestError) -> Self {
        Self { code: error.code(), message: error.message(), position: None }
    }
}

impl From<GrpcError> for RlsError {
    fn from(error: GrpcError) -> Self {
        Self::Call(error)
    }
}

impl From<BadDescriptor> for RlsError {
    fn from(bad: BadDescriptor) -> Self {
        Self::Descriptor(bad)
    }
}
