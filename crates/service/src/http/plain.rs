//! Plain requests: HTTP/1.1 requests that need nothing of the protocol but a head and a length.
//!
//! Most clients send only these, and a server for them is a small part of a server for HTTP. Whether a request is plain is
//! decided strictly: everything else, also everything malformed, is left to hyper.

use std::mem::MaybeUninit;

use http::header::{CONTENT_LENGTH, HeaderName};
use http::{Method, Version, header};
use tidegate_policy::normalize_host;

use super::dispatch::is_endpoint;
use super::request::{EndpointBody, EndpointRequest, RequestHeaders};

/// The most headers of a plain request.
pub(super) const MAX_LINES: usize = 32;
/// The most digits of the length of a plain request's body.
const MAX_LENGTH_DIGITS: usize = 6;

/// Space for the headers of a request.
pub(super) type LineBuffer<'r> = [MaybeUninit<httparse::Header<'r>>; MAX_LINES];

/// A plain request that was read completely.
pub(super) struct PlainRequest<'r> {
    pub(super) head: EndpointRequest<'r>,
    pub(super) body: EndpointBody<'r>,
    /// The bytes of both.
    pub(super) length: usize,
}

impl<'r> PlainRequest<'r> {
    /// Parses the request at the beginning of `input`; `None` if it is not plain or not complete.
    pub(super) fn parse(input: &'r [u8], lines: &'r mut LineBuffer<'r>) -> Option<Self> {
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(input, lines).ok()?;
        let httparse::Status::Complete(body_start) = parsed else { return None };
        let method = match request.method? {
            "POST" => Method::POST,
            "GET" => Method::GET,
            _ => return None,
        };
        let path = request.path.filter(|path| request.version == Some(1) && is_endpoint(path))?;
        let lines: &'r [httparse::Header<'r>] = request.headers;
        let length = body_start + body_length(lines)?;
        let body = EndpointBody::Whole(input.get(body_start..length)?);
        let headers = RequestHeaders::Lines(lines);
        let head = EndpointRequest { method, path, authority: None, version: Version::HTTP_11, headers };
        Some(Self { head, body, length })
    }
}

/// The length of the body; `None` if it is not certain, if a header asks for more than a response, or if there is not one valid
/// host.
fn body_length(lines: &[httparse::Header<'_>]) -> Option<usize> {
    let (mut length, mut has_host) = (None, false);
    for line in lines {
        let is = |name: HeaderName| line.name.eq_ignore_ascii_case(name.as_str());
        // Few headers have names of these lengths, so few are compared.
        match line.name.len() {
            2 if is(header::TE) => return None,
            4 if is(header::HOST) => {
                if has_host || !is_host(line.value) {
                    return None;
                }
                has_host = true;
            }
            6 if is(header::EXPECT) => return None,
            7 if is(header::UPGRADE) => return None,
            10 if is(header::CONNECTION) && !line.value.eq_ignore_ascii_case(b"keep-alive") => return None,
            14 if is(CONTENT_LENGTH) => {
                if length.is_some() {
                    return None;
                }
                length = Some(parse_length(line.value)?);
            }
            17 if is(header::TRANSFER_ENCODING) => return None,
            _ => {}
        }
    }
    has_host.then(|| length.unwrap_or_default())
}

fn is_host(value: &[u8]) -> bool {
    std::str::from_utf8(value).is_ok_and(|host| !host.is_empty() && normalize_host(host).is_some())
}

fn parse_length(digits: &[u8]) -> Option<usize> {
    if !(1..=MAX_LENGTH_DIGITS).contains(&digits.len()) {
        return None;
    }
    digits
        .iter()
        .try_fold(0, |length, digit| digit.is_ascii_digit().then(|| length * 10 + usize::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length and the body of a plain request.
    fn parse(input: &str) -> Option<(usize, String)> {
        let mut lines = [const { MaybeUninit::uninit() }; MAX_LINES];
        let request = PlainRequest::parse(input.as_bytes(), &mut lines)?;
        let EndpointBody::Whole(body) = request.body else { return None };
        Some((request.length, String::from_utf8(body.to_vec()).unwrap()))
    }

    #[test]
    fn plain_request_is_parsed_to_its_end() {
        let head =
            "POST /v1/check HTTP/1.1\r\nHost: a\r\nConnection: Keep-Alive\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(parse(&format!("{head}abcGET ")), Some((head.len() + 3, "abc".to_owned())));
        let get = "GET /v1/authorize HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(parse(&format!("{get}{get}")), Some((get.len(), String::new())));
    }

    #[test]
    fn incomplete_request_is_not_plain() {
        let request = "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        for end in 0..request.len() {
            assert_eq!(parse(&request[..end]), None, "{end}");
        }
        assert!(parse(request).is_some());
    }

    #[test]
    fn request_with_unusual_framing_is_not_plain() {
        for head in [
            "POST /v1/check HTTP/1.0",
            "HEAD /v1/check HTTP/1.1",
            "PUT /v1/check HTTP/1.1",
            "PRI * HTTP/2.0",
            "POST /v1/check HTTP/1.1\r\nTransfer-Encoding: chunked",
            "POST /v1/check HTTP/1.1\r\nTRANSFER-ENCODING:identity",
            "POST /v1/check HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3",
            "POST /v1/check HTTP/1.1\r\nContent-Length: 3, 3",
            "POST /v1/check HTTP/1.1\r\nContent-Length: +3",
            "POST /v1/check HTTP/1.1\r\nContent-Length: -3",
            "POST /v1/check HTTP/1.1\r\nContent-Length: 0x3",
            "POST /v1/check HTTP/1.1\r\nContent-Length:",
            "POST /v1/check HTTP/1.1\r\nContent-Length: 99999999999999999999",
            "POST /v1/check HTTP/1.1\r\nConnection: close",
            "POST /v1/check HTTP/1.1\r\nConnection: keep-alive, upgrade",
            "POST /v1/check HTTP/1.1\r\nUpgrade: h2c",
            "POST /v1/check HTTP/1.1\r\nExpect: 100-continue",
            "POST /v1/check HTTP/1.1\r\nTE: trailers",
            "POST /v1/check HTTP/1.1\r\nContent-Length : 3",
            "POST /v1/check HTTP/1.1\r\nX: a\r\n b",
            "POST /v1/check HTTP/1.1\r\nX: a\0b",
        ] {
            assert_eq!(parse(&format!("{head}\r\n\r\nabc")), None, "{head}");
        }
        let many = "X: a\r\n".repeat(MAX_LINES + 1);
        assert_eq!(parse(&format!("GET / HTTP/1.1\r\n{many}\r\n")), None);
    }
}
