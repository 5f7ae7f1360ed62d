//! Error responses to gRPC calls: clients expect a gRPC status instead of an HTTP status.
//!
//! The response is `Trailers-Only`: HTTP status 200, the gRPC status in the headers, no body.
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode, Version};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// How long a client waits before it retries; a negative number disables retries.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const MEDIA_TYPE: &[u8] = b"application/grpc";

/// The content type of a gRPC call; `None` if the request is not one.
#[inline]
pub fn grpc_content_type(version: Version, headers: &HeaderMap) -> Option<&HeaderValue> {
    if version != Version::HTTP_2 {
        return None;
    }
    headers.get(CONTENT_TYPE).filter(|value| {
        let Some((start, rest)) = value.as_bytes().split_at_checked(MEDIA_TYPE.len()) else { return false };
        start.eq_ignore_ascii_case(MEDIA_TYPE)
            && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'-'))
    })
}

/// Writes the gRPC status of an error into `headers`, and when the client may retry. The status is that which corresponds to an
/// HTTP status. Without a time, a call that a limit refuses would always fail again.
pub fn write_grpc_status(
    headers: &mut HeaderMap,
    status: StatusCode,
    message: &str,
    retry_after: Option<u64>,
) {
    headers.insert(STATUS, code(status).into());
    headers.insert(MESSAGE, percent_encoded(message));
    if let Some(seconds) = retry_after {
        headers.insert(PUSHBACK, seconds.saturating_mul(1_000).into());
    } else if status == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(PUSHBACK, HeaderValue::from_static("-1"));
    }
}

/// The gRPC status for an HTTP status. It follows the mapping that gRPC clients use, except for 429, which they map to
/// UNAVAILABLE.
fn code(status: StatusCode) -> u16 {
    const UNKNOWN: u16 = 2;
    const DEADLINE_EXCEEDED: u16 = 4;
    const PERMISSION_DENIED: u16 = 7;
    const RESOURCE_EXHAUSTED: u16 = 8;
    const UNIMPLEMENTED: u16 = 12;
    const INTERNAL: u16 = 13;
    const UNAVAILABLE: u16 = 14;
    const UNAUTHENTICATED: u16 = 16;
    match status {
        StatusCode::BAD_REQUEST => INTERNAL,
        StatusCode::UNAUTHORIZED => UNAUTHENTICATED,
        StatusCode::FORBIDDEN => PERMISSION_DENIED,
        StatusCode::NOT_FOUND => UNIMPLEMENTED,
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => DEADLINE_EXCEEDED,
        StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => RESOURCE_EXHAUSTED,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
        _ => UNKNOWN,
    }
}

/// Encodes text for `grpc-message`: visible ASCII and spaces except `%` stay as they are.
pub fn percent_encoded(text: &str) -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(byte);
        } else {
            let digit = |half: u8| DIGITS.get(usize::from(half & 15)).copied().unwrap_or(b'0');
            encoded.extend([b'%', digit(byte >> 4), digit(byte)]);
        }
    }
    // Visible ASCII is always a valid value.
    HeaderValue::from_bytes(&encoded).unwrap_or(HeaderValue::from_static(""))
}

/// The status code of a gRPC call in its trailers, or in the headers of a response without a body. `None` if there is none.
pub fn grpc_status(headers: &HeaderMap) -> Option<u16> {
    headers.get(STATUS)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_message_with_special_characters_is_percent_encoded() {
        assert_eq!(percent_encoded("100 % of \"ü\"\n"), "100 %25 of \"%C3%BC\"%0A");
    }

    #[test]
    fn grpc_content_type_is_recognized_over_http2_only() {
        let is_grpc = |version, value: &'static str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            grpc_content_type(version, &headers).is_some()
        };
        for value in
            ["application/grpc", "application/grpc+proto", "application/GRPC;a=b", "application/grpc-web"]
        {
            assert!(is_grpc(Version::HTTP_2, value), "{value}");
            assert!(!is_grpc(Version::HTTP_11, value), "{value}");
        }
        for value in ["", "application/grp", "application/grpcx", "application/json", "text/plain"] {
            assert!(!is_grpc(Version::HTTP_2, value), "{value}");
        }
    }
}
