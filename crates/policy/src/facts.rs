//! What is known of a request before anybody decides about it.

use std::net::IpAddr;

use http::HeaderMap;

/// A request, as far as the policy looks at it.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The method, in capitals as it was sent.
    pub method: &'a str,
    /// The host, as [`normalize_host`](crate::normalize_host) spells it.
    pub host: &'a str,
    /// The path, normalised, without the query.
    pub path: &'a str,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// Who is at the other end of the connection: the client, or a proxy.
    pub peer: IpAddr,
}
