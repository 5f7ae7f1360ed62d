//! The request data that a policy is matched against.

use std::net::IpAddr;

use http::HeaderMap;

/// The parts of a request that a policy reads.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The method as sent, which is uppercase.
    pub method: &'a str,
    /// The host, normalised by [`normalize_host`](crate::normalize_host).
    pub host: &'a str,
    /// The path, normalised, without the query.
    pub path: &'a str,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The address at the other end of the connection: the client or a proxy.
    pub peer: IpAddr,
}
