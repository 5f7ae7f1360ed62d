//! gRPC statuses.

use std::borrow::Cow;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response};
use tidegate_headers::{RefusalEntry, percent_encoded};

pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The longest message that is sent. Clients limit the size of headers.
const MAX_MESSAGE_CHARACTERS: usize = 400;

/// The status code of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcCode {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct GrpcError {
    pub(crate) code: GrpcCode,
    pub(crate) message: Cow<'static, str>,
}

impl GrpcError {
    pub(crate) fn new(code: GrpcCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(GrpcCode::InvalidArgument, message)
    }

    /// The store returned no decision.
    pub(crate) fn store_unavailable() -> Self {
        Self::new(GrpcCode::Unavailable, RefusalEntry::STORE_UNAVAILABLE.body(None, None).message)
    }

    /// The HTTP status with which metrics and logs record the call.
    pub(crate) fn http_status(&self) -> u16 {
        match self.code {
            GrpcCode::Unknown | GrpcCode::InvalidArgument | GrpcCode::Internal => 400,
            GrpcCode::Unauthenticated => 401,
            GrpcCode::NotFound => 404,
            GrpcCode::ResourceExhausted => 413,
            GrpcCode::Unimplemented => 501,
            GrpcCode::Unavailable => 503,
            GrpcCode::DeadlineExceeded => 504,
        }
    }

    /// Its trailers.
    pub(super) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(2);
        trailers.insert(STATUS, HeaderValue::from(self.code as u16));
        trailers.insert(MESSAGE, percent_encoded(beginning(&self.message, MAX_MESSAGE_CHARACTERS)));
        trailers
    }

    /// A response of trailers only.
    pub(super) fn response(&self) -> Response<()> {
        let mut response = Response::new(());
        *response.headers_mut() = self.trailers();
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        // A client whose message was compressed learns from it that it must not compress.
        response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        response
    }
}

/// The trailers of a call that succeeded.
pub(super) fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    trailers
}

/// Text of a client as messages show it: its beginning.
pub(super) fn shown(text: &str) -> &str {
    beginning(text, 100)
}

fn beginning(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_message_is_percent_encoded_in_trailers() {
        let trailers = GrpcError::new(GrpcCode::NotFound, "no 100% `é`\n").trailers();
        assert_eq!(trailers["grpc-status"], "5");
        assert_eq!(trailers["grpc-message"], "no 100%25 `%C3%A9`%0A");
    }

    #[test]
    fn error_message_shows_the_beginning_of_long_text() {
        assert_eq!(shown("é"), "é");
        assert_eq!(shown(&"é".repeat(101)), "é".repeat(100));
        let trailers = GrpcError::invalid("a".repeat(1_000)).trailers();
        assert_eq!(trailers["grpc-message"].len(), MAX_MESSAGE_CHARACTERS);
    }
}
