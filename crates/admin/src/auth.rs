//! Who may come in.
//!
//! A browser on the same machine can be made to ask a loopback address by any page it shows. It then says which page
//! (`Origin`), or names a host that is not this one (when a name of the page's own was turned to our address). Neither
//! is ever answered; and no page is told that it may read an answer. The token is wanted all the same.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, Method, StatusCode};
use tidegate_policy::split_port;

use crate::response::ApiError;
use crate::token::AdminToken;

/// The one way in.
#[derive(Debug)]
pub(crate) struct Auth {
    pub(crate) token: AdminToken,
    /// Only this machine can reach it.
    pub(crate) is_loopback: bool,
}

/// What a request may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read health, which needs no token.
    Public,
    /// Everything: it has the token.
    Operator,
}

/// What may be read without a token.
const PUBLIC: [&str; 2] = ["/healthz", "/readyz"];

impl Auth {
    pub(crate) fn admit(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<Access, ApiError> {
        if headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
            let what = "this is not for web pages";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", what)
                .hint("ask with `tidegate status` or curl"));
        }
        if self.is_loopback && !is_ours(headers) {
            let what = "the Host of the request is not this machine's";
            return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", what)
                .hint("ask for 127.0.0.1 or localhost"));
        }
        if PUBLIC.contains(&path) && matches!(*method, Method::GET | Method::HEAD) {
            return Ok(Access::Public);
        }
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let token = sent.next().and_then(|value| bearer(value.as_bytes()));
        match token {
            Some(token) if sent.next().is_none() && self.token.is(token) => Ok(Access::Operator),
            token => Err(ApiError::no_token(token.is_some())),
        }
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// An address, or this machine's own name for itself: a page that was led here by a name comes with that.
fn is_ours(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(host) = host.to_str() else { return false };
    let name = match split_port(host) {
        (name, Some(port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn admitted(path: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let auth = Auth { token: AdminToken::parse(TOKEN).unwrap(), is_loopback: true };
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        auth.admit(&Method::GET, path, &headers).is_ok()
    }

    #[test]
    fn the_token_lets_in_and_nothing_else_does() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:9900");
        assert!(admitted("/v1/bans", &[HOST, ("authorization", "Bearer 0123456789abcdef")]));
        assert!(admitted("/v1/bans", &[HOST, ("authorization", "bearer 0123456789abcdef ")]));
        for value in
            ["", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Basic 0123456789abcdef", "0123456789abcdef"]
        {
            assert!(!admitted("/v1/bans", &[HOST, ("authorization", value)]), "{value}");
        }
        assert!(!admitted("/metrics", &[HOST]));
        assert!(admitted("/healthz", &[HOST]) && admitted("/readyz", &[HOST]));
        assert!(!admitted("/healthz/", &[HOST]) && !admitted("//healthz", &[HOST]));
    }

    #[test]
    fn no_page_in_a_browser_is_answered() {
        const LET_IN: (&str, &str) = ("authorization", "Bearer 0123456789abcdef");
        for host in ["127.0.0.1", "localhost:9900", "LOCALHOST", "[::1]:9900", "192.0.2.1:80"] {
            assert!(admitted("/metrics", &[("host", host), LET_IN]), "{host}");
            assert!(!admitted("/metrics", &[("host", host), LET_IN, ("origin", "http://127.0.0.1:9900")]));
            assert!(!admitted("/healthz", &[("host", host), ("origin", "null")]));
        }
        for host in ["evil.example", "localhost.evil.example:9900", "127.0.0.1.evil.example", ""] {
            assert!(!admitted("/healthz", &[("host", host), LET_IN]), "{host}");
        }
        assert!(!admitted("/healthz", &[LET_IN]));
        assert!(!admitted("/healthz", &[("host", "localhost"), ("host", "localhost")]));
    }
}
