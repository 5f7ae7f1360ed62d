//! The request data that a policy is matched against.

use std::net::IpAddr;

use http::HeaderMap;

/// The parts of a request that a policy reads.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The method as sent, which is uppercase.
    pub method: &'a str,
    /// The host, normalised by [`normalize_host`](crate::normalize_host), and empty if the request has none. `None` if the caller does
    /// not know it: a condition that reads an unknown host cannot be evaluated, so its rule applies.
    pub host: Option<&'a str>,
    /// The path, normalised, without the query.
    pub path: &'a str,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The address at the other end of the connection: the client or a proxy.
    pub peer: IpAddr,
    /// The body, if a rule reads it: see [`Matcher::reads_body`](crate::Matcher::reads_body).
    pub body: BodyFacts<'a>,
}

/// What is known of the body of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BodyFacts<'a> {
    /// The caller does not know whether there is a body. That is not the same as none, but names no user either.
    #[default]
    Unknown,
    /// The whole body as it was sent; empty if there is none.
    Complete(&'a [u8]),
    /// There is a body, which is too large or has not arrived in time.
    Incomplete,
    /// The caller has read the body, and it names this user.
    User(&'a str),
}
