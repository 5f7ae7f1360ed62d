//! Normalizes the framing of a response: at most one `Content-Length` is forwarded.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

/// The end of a response is ambiguous, or its transfer coding is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AmbiguousFraming;

/// Leaves at most one `Content-Length`, that of the forwarded body. Returns whether the connection may be reused: the server
/// must not have sent contradicting lengths. hyper reads the body by the same rules (RFC 9112, section 6.3).
pub(super) fn normalize<B>(response: &mut Response<B>) -> Result<bool, AmbiguousFraming> {
    let has_no_content = response.status() == StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    if headers.contains_key(TRANSFER_ENCODING) {
        if !is_chunked(headers) {
            return Err(AmbiguousFraming);
        }
        // The transfer coding overrides the length.
        return Ok(headers.remove(CONTENT_LENGTH).is_none());
    }
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lines.next() else { return Ok(true) };
    if is_digits(first.as_bytes()) && lines.next().is_none() && !has_no_content {
        return Ok(true);
    }
    let length = common_length(headers)?;
    if has_no_content {
        headers.remove(CONTENT_LENGTH);
        return Ok(length == "0");
    }
    headers.insert(CONTENT_LENGTH, length);
    Ok(true)
}

/// hyper decodes only `chunked`.
fn is_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(is_chunked) && codings.next().is_none()
}

/// The length, if all header lines and list members are equal.
fn common_length(headers: &HeaderMap) -> Result<HeaderValue, AmbiguousFraming> {
    let lines = headers.get_all(CONTENT_LENGTH).iter();
    let mut members =
        lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    let length = members.next().filter(|length| is_digits(length)).ok_or(AmbiguousFraming)?;
    if members.any(|member| member != length) {
        return Err(AmbiguousFraming);
    }
    HeaderValue::from_bytes(length).map_err(|_| AmbiguousFraming)
}

fn is_digits(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(status: u16, headers: &[(&'static str, &'static str)]) -> Option<(bool, Vec<String>)> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in headers {
            response.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        let is_trusted = normalize(&mut response).ok()?;
        let lengths = response.headers().get_all(CONTENT_LENGTH).iter();
        Some((is_trusted, lengths.map(|length| length.to_str().unwrap().to_owned()).collect()))
    }

    #[test]
    fn framing_content_length_is_forwarded_once_or_removed() {
        let one = |length: &str| vec![length.to_owned()];
        assert_eq!(normalized(200, &[]), Some((true, vec![])));
        assert_eq!(normalized(200, &[("content-length", "5")]), Some((true, one("5"))));
        assert_eq!(normalized(200, &[("content-length", "5, 5 ,5")]), Some((true, one("5"))));
        let twice = [("content-length", "5"), ("content-length", "5")];
        assert_eq!(normalized(200, &twice), Some((true, one("5"))));
        let both = [("content-length", "5"), ("transfer-encoding", "Chunked")];
        assert_eq!(normalized(200, &both), Some((false, vec![])));
        assert_eq!(normalized(200, &both[1..]), Some((true, vec![])));
        assert_eq!(normalized(204, &[("content-length", "0")]), Some((true, vec![])));
        assert_eq!(normalized(204, &[("content-length", "5")]), Some((false, vec![])));
        assert_eq!(normalized(304, &[("content-length", "5")]), Some((true, one("5"))));
    }

    #[test]
    fn framing_ambiguous_is_an_error() {
        let ambiguous: [&[_]; 8] = [
            &[("content-length", "5"), ("content-length", "6")],
            &[("content-length", "5, 6")],
            &[("content-length", "")],
            &[("content-length", "+5")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "")],
        ];
        for headers in ambiguous {
            assert_eq!(normalized(200, headers), None, "{headers:?}");
        }
    }
}
