//! Authorization of requests to the admin API.
//!
//! Any web page can make a browser on the same machine send requests to a loopback address. Such a request has an
//! `Origin` header, or, with DNS rebinding, a foreign name in `Host`. Both are rejected, and no response has CORS
//! headers. A token is required as well.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tidegate_listener::bearer;
use tidegate_policy::split_port;

use crate::proof::{self, ConnectionAddresses, PROOF_PATH};
use crate::response::ApiError;
use crate::token::AdminToken;

/// Authorizes requests.
#[derive(Debug)]
pub(crate) struct Auth {
    pub(crate) token: AdminToken,
    /// The listener has a loopback address.
    pub(crate) is_loopback: bool,
}

/// The access that a request has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Health checks only, which need no token.
    Public,
    /// The server's proof that it has the token.
    Proof(String),
    /// Everything, with the token.
    Operator,
}

/// Paths that need no token.
const PUBLIC_PATHS: [&str; 2] = ["/healthz", "/readyz"];

impl Auth {
    pub(crate) fn authorize(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        connection: ConnectionAddresses,
    ) -> Result<Access, ApiError> {
        if headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
            let message = "browser requests are not allowed";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message)
                .hint("use the tidegate command, for example `tidegate status`, or curl"));
        }
        if self.is_loopback && !is_local_host(headers) {
            let message = "the Host header must be an IP address or localhost";
            return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", message)
                .hint("use http://127.0.0.1 or http://localhost"));
        }
        if PUBLIC_PATHS.contains(&path) && matches!(*method, Method::GET | Method::HEAD) {
            return Ok(Access::Public);
        }
        if path == PROOF_PATH && *method == Method::GET {
            let sent = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
            let proof = proof::respond(&self.token, sent, connection);
            return proof.map(Access::Proof).ok_or_else(|| ApiError::unauthorized(!sent.is_empty()));
        }
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let token = sent.next().and_then(|value| bearer(value.as_bytes()));
        match token {
            Some(token) if sent.next().is_none() && self.token.matches(token) => Ok(Access::Operator),
            token => Err(ApiError::unauthorized(token.is_some())),
        }
    }
}

/// Whether the `Host` is an IP address or `localhost`. With DNS rebinding it is a name of the attacker.
fn is_local_host(headers: &HeaderMap) -> bool {
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

    fn is_authorized(path: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let auth = Auth { token: AdminToken::parse(TOKEN).unwrap(), is_loopback: true };
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 9900));
        let connection = ConnectionAddresses { client: address, server: address };
        auth.authorize(&Method::GET, path, &headers, connection).is_ok()
    }

    #[test]
    fn request_without_the_exact_token_is_rejected() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:9900");
        assert!(is_authorized("/v1/bans", &[HOST, ("authorization", "Bearer 0123456789abcdef")]));
        assert!(is_authorized("/v1/bans", &[HOST, ("authorization", "bearer 0123456789abcdef ")]));
        for value in
            ["", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Basic 0123456789abcdef", "0123456789abcdef"]
        {
            assert!(!is_authorized("/v1/bans", &[HOST, ("authorization", value)]), "{value}");
        }
        assert!(!is_authorized("/metrics", &[HOST]));
        assert!(is_authorized("/healthz", &[HOST]) && is_authorized("/readyz", &[HOST]));
        assert!(!is_authorized("/healthz/", &[HOST]) && !is_authorized("//healthz", &[HOST]));
    }

    #[test]
    fn request_with_origin_or_foreign_host_is_rejected() {
        const TOKEN_HEADER: (&str, &str) = ("authorization", "Bearer 0123456789abcdef");
        for host in ["127.0.0.1", "localhost:9900", "LOCALHOST", "[::1]:9900", "192.0.2.1:80"] {
            assert!(is_authorized("/metrics", &[("host", host), TOKEN_HEADER]), "{host}");
            assert!(!is_authorized(
                "/metrics",
                &[("host", host), TOKEN_HEADER, ("origin", "http://127.0.0.1:9900")]
            ));
            assert!(!is_authorized("/healthz", &[("host", host), ("origin", "null")]));
        }
        for host in ["evil.example", "localhost.evil.example:9900", "127.0.0.1.evil.example", ""] {
            assert!(!is_authorized("/healthz", &[("host", host), TOKEN_HEADER]), "{host}");
        }
        assert!(!is_authorized("/healthz", &[TOKEN_HEADER]));
        assert!(!is_authorized("/healthz", &[("host", "localhost"), ("host", "localhost")]));
    }
}
