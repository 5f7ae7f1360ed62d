//! Request checks that do not depend on the policy, shared by the gateway and `explain`.

use std::borrow::Cow;
use std::fmt;

use http::header::{HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Version};

use crate::host::normalize_host;

/// Why a request is rejected with 400, whatever the policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// The method is not uppercase. Rules compare methods exactly, so `post` would bypass a rule for `POST` if the server
    /// ignores case.
    Method,
    /// The method is CONNECT.
    Connect,
    /// The target is `*` and the method is not OPTIONS.
    Asterisk,
    /// There is no `Host` header.
    NoHost,
    /// There is more than one `Host` header.
    RepeatedHost,
    /// The `Host` header is invalid or ambiguous.
    Host,
    /// `Transfer-Encoding` is not `chunked`, or there is more than one.
    TransferEncoding,
}

impl RequestError {
    /// The reason that is shown to the client.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Method => "method must be uppercase",
            Self::Connect => "method CONNECT is not supported",
            Self::Asterisk => "the target `*` is only allowed with OPTIONS",
            Self::NoHost => "missing Host header",
            Self::RepeatedHost => "more than one Host header",
            Self::Host => "invalid Host header",
            Self::TransferEncoding => "Transfer-Encoding must be `chunked`",
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for RequestError {}

/// Checks the method of a request; `path` is the path as sent.
pub fn check_method(method: &str, path: &str) -> Result<(), RequestError> {
    if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(RequestError::Method);
    }
    match method {
        "CONNECT" => Err(RequestError::Connect),
        "OPTIONS" => Ok(()),
        _ if path == "*" => Err(RequestError::Asterisk),
        _ => Ok(()),
    }
}

/// Checks the coding of a body. HTTP libraries accept any list that ends in `chunked`, and decode only that.
pub fn check_transfer_encoding(headers: &HeaderMap) -> Result<(), RequestError> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match codings.next() {
        Some(coding) if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Err(RequestError::TransferEncoding)
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks coding and host of a request that is not forwarded. RFC 9112, section 3.2: HTTP/1.1 requires one valid Host for every
/// form of the target.
pub fn check_http1_headers(version: Version, headers: &HeaderMap) -> Result<(), RequestError> {
    if version >= Version::HTTP_2 {
        return Ok(());
    }
    check_transfer_encoding(headers)?;
    match host_header(headers) {
        Err(RequestError::NoHost) if version != Version::HTTP_11 => Ok(()),
        host => host.and_then(requested_host).map(drop),
    }
}

/// The `Host` header of a request, which must appear exactly once.
pub fn host_header(headers: &HeaderMap) -> Result<&HeaderValue, RequestError> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().ok_or(RequestError::NoHost)?;
    if hosts.next().is_some() { Err(RequestError::RepeatedHost) } else { Ok(host) }
}

/// The normalised host of a `Host` header. Does not allocate if it is already normalised.
pub fn requested_host(header: &HeaderValue) -> Result<Cow<'_, str>, RequestError> {
    let host = header.to_str().ok().filter(|host| !host.is_empty());
    host.and_then(normalize_host).ok_or(RequestError::Host)
}

/// Whether only a trusted proxy may send a header of this name: it describes the client, overrides the URL of the request,
/// or says how important it is. `X-Forwarded-For` and `-Proto` are not included: which of their values are used depends on
/// the proxies that have written them.
pub fn is_proxy_header(name: &str) -> bool {
    let Some(name) = name.strip_prefix("x-") else { return false };
    match name.strip_prefix("forwarded-") {
        Some(rest) => rest != "for" && rest != "proto",
        None => {
            name == "real-ip"
                || name == "criticality"
                || name.starts_with("original-")
                || name.starts_with("rewrite-")
        }
    }
}

/// Whether a header name has a character that is no letter, digit or dash. Some servers replace it: many read `X_API_Key` as
/// `X-API-Key`, and PHP reads `X.API.Key` so.
pub fn has_unusual_character(name: &str) -> bool {
    name.bytes().any(|byte| !byte.is_ascii_alphanumeric() && byte != b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_lowercase_connect_or_asterisk_is_rejected() {
        for (method, path, expected) in [
            ("GET", "/", Ok(())),
            ("M-SEARCH", "/", Ok(())),
            ("OPTIONS", "*", Ok(())),
            ("get", "/", Err(RequestError::Method)),
            ("GEt", "/", Err(RequestError::Method)),
            ("CONNECT", "/", Err(RequestError::Connect)),
            ("GET", "*", Err(RequestError::Asterisk)),
        ] {
            assert_eq!(check_method(method, path), expected, "{method} {path}");
        }
    }
}
