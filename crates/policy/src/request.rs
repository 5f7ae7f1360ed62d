//! What every request must be before a policy is asked: the checks that the gateway and `explain` share.

use std::borrow::Cow;
use std::fmt;

use http::header::HOST;
use http::{HeaderMap, HeaderValue};

use crate::host::normalize_host;

/// Why a request is rejected with 400, whatever the policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// Its method is not in capitals: rules name methods exactly, and a server that takes `post` for `POST` would be
    /// asked past them.
    Method,
    /// It asks for a tunnel.
    Connect,
    /// It asks for `*` with another method than OPTIONS.
    Asterisk,
    /// It has no Host.
    NoHost,
    /// It has more than one Host.
    RepeatedHost,
    /// Its Host is not a host, or readers would disagree which.
    Host,
}

impl RequestError {
    /// What is wrong, as clients read it.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Method => "method must be uppercase",
            Self::Connect => "method CONNECT is not supported",
            Self::Asterisk => "the target `*` is only allowed with OPTIONS",
            Self::NoHost => "missing Host header",
            Self::RepeatedHost => "more than one Host header",
            Self::Host => "invalid Host header",
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for RequestError {}

/// Whether a request may have this method; `path` is the path as sent.
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

/// The `Host` of a request, which it must have once.
pub fn host_header(headers: &HeaderMap) -> Result<&HeaderValue, RequestError> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().ok_or(RequestError::NoHost)?;
    if hosts.next().is_some() { Err(RequestError::RepeatedHost) } else { Ok(host) }
}

/// The host that a `Host` names, normalised. Nothing is allocated for one that is normalised already.
pub fn requested_host(header: &HeaderValue) -> Result<Cow<'_, str>, RequestError> {
    let host = header.to_str().ok().filter(|host| !host.is_empty());
    host.and_then(normalize_host).ok_or(RequestError::Host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_that_rules_would_not_see_is_rejected() {
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
