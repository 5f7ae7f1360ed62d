//! Which requests may fill the memory, and be served from it.
//!
//! Both have the same condition: a GET without anything that could make its response one for this client only, except what its key
//! contains. A header that is not listed here could be a credential, or make the server respond in an unusual way for all others
//! (poisoning), so a request with it takes no part. The key contains the values of all headers that `clients` reads, and of those by
//! which servers choose a representation, whether they say so in `Vary` or not.

use http::header::{
    ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, CONNECTION, FORWARDED, HOST,
    HeaderMap, HeaderName, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, ORIGIN, PRAGMA, REFERER, TE,
    UPGRADE_INSECURE_REQUESTS, USER_AGENT,
};
use http::{Method, Uri};
use smallvec::SmallVec;
use tidegate_core::TimeSpan;
use tidegate_headers::REQUEST_ID;

use crate::http::hop_headers::{FORWARDED_FOR, FORWARDED_PROTO, REAL_IP};

/// What the key of a response contains beside those that identify the client.
const REPRESENTATION: [HeaderName; 6] =
    [ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, ORIGIN, USER_AGENT];
/// What a trusted proxy says about the client.
const FORWARDING: [HeaderName; 4] = [FORWARDED, FORWARDED_FOR, FORWARDED_PROTO, REAL_IP];

/// A request as the memory of responses sees it.
#[derive(Debug)]
pub(crate) struct PlainGet {
    /// What the response depends on. It may contain an API key.
    pub(super) key: Box<[u8]>,
    /// The headers that `key` does not contain, for `Vary`.
    pub(super) others: HeaderMap,
    /// The greatest age that the client accepts; `None` if it accepts none.
    pub(super) max_age: Option<TimeSpan>,
    /// Whether the response may be stored: that to HEAD has no body, and a service may repeat values that are no plain words.
    pub(super) fills: bool,
}

/// What a request is about, beside its headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTarget<'r> {
    pub(crate) method: &'r Method,
    pub(crate) has_body: bool,
    /// The scheme of the client's connection.
    pub(crate) scheme: &'r HeaderValue,
    pub(crate) host: Option<&'r str>,
    /// The normalized path.
    pub(crate) path: &'r str,
    pub(crate) uri: &'r Uri,
}

/// The headers that tell clients apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientHeaders<'r> {
    /// Those that `clients` reads.
    pub(crate) identity: &'r [HeaderName],
    /// Whether the peer is a proxy whose forwarding headers are read.
    pub(crate) is_trusted: bool,
}

impl RequestTarget<'_> {
    /// What is the same for all requests of one resource: host, path and query.
    pub(crate) fn resource(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        put(&mut bytes, self.host.unwrap_or_default().as_bytes());
        put(&mut bytes, self.path.as_bytes());
        put(&mut bytes, self.uri.query().unwrap_or_default().as_bytes());
        // A query may be empty, which is not the same as none.
        bytes.push(u8::from(self.uri.query().is_some()));
        bytes
    }
}

impl PlainGet {
    /// Reads a request; `None` if it takes no part. `epoch` numbers the policy.
    pub(crate) fn new(
        target: RequestTarget<'_>,
        headers: &HeaderMap,
        clients: ClientHeaders<'_>,
        epoch: u64,
    ) -> Option<Self> {
        let mut fills = *target.method == Method::GET;
        if target.has_body || !(fills || *target.method == Method::HEAD) {
            return None;
        }
        let mut key = target.resource();
        key.extend_from_slice(&epoch.to_be_bytes());
        put(&mut key, target.scheme.as_bytes());
        let is_keyed = |name: &HeaderName| {
            // As it was sent: a service may build links with the port.
            *name == HOST
                || REPRESENTATION.contains(name)
                || name.as_str().starts_with("sec-ch-ua")
                || clients.identity.contains(name)
                || clients.is_trusted && FORWARDING.contains(name)
        };
        let mut others = HeaderMap::new();
        let mut keyed = SmallVec::<[(&HeaderName, &HeaderValue); 8]>::new();
        for (name, value) in headers {
            match name {
                &http::header::AUTHORIZATION | &http::header::COOKIE => return None,
                name if is_keyed(name) => keyed.push((name, value)),
                _ => {
                    fills &= NeutralValue::of(name, value)? == NeutralValue::Plain;
                    others.append(name, value.clone());
                }
            }
        }
        // The order of different headers says nothing; that of lines of the same header stays.
        keyed.sort_by_key(|(name, _)| name.as_str());
        for (name, value) in keyed {
            put(&mut key, name.as_str().as_bytes());
            put(&mut key, value.as_bytes());
        }
        let max_age = greatest_age(&others);
        Some(Self { key: key.into(), others, max_age, fills })
    }
}

/// Appends bytes with their length, so that no two lists have the same encoding.
fn put(key: &mut Vec<u8>, bytes: &[u8]) {
    key.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    key.extend_from_slice(bytes);
}

/// The value of a header that is frequent and says nothing about who sends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NeutralValue {
    /// Letters, digits and some signs, not many of them.
    Plain,
    /// Anything else. If a service repeats it, its response is not for others.
    Free,
}

impl NeutralValue {
    /// The longest plain value: a `traceparent`, an id or some directives.
    const LONGEST: usize = 64;

    /// `None` if the header is not neutral.
    fn of(name: &HeaderName, value: &HeaderValue) -> Option<Self> {
        let bytes = value.as_bytes();
        match *name {
            REFERER | IF_MODIFIED_SINCE | IF_NONE_MATCH => return Some(Self::Free),
            CACHE_CONTROL | PRAGMA | UPGRADE_INSECURE_REQUESTS => {}
            // Others name headers that are removed, or ask for another protocol.
            CONNECTION => {
                ["keep-alive", "close"].iter().find(|plain| bytes.eq_ignore_ascii_case(plain.as_bytes()))?;
            }
            TE if value == "trailers" => {}
            _ if *name == REQUEST_ID => {}
            _ => match name.as_str() {
                // A response within a short time may be incomplete.
                "tracestate" | "x-request-deadline-ms" => return Some(Self::Free),
                "dnt" | "priority" | "traceparent" | "x-correlation-id" => {}
                name if name.starts_with("sec-fetch-") => {}
                _ => return None,
            },
        }
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_=,?. ".contains(byte);
        let is_plain = bytes.len() <= Self::LONGEST && bytes.iter().all(is_plain);
        Some(if is_plain { Self::Plain } else { Self::Free })
    }
}

/// The greatest age of a response that the client accepts; `None` if it wants one that the server has confirmed. What is not
/// understood is taken for that.
fn greatest_age(headers: &HeaderMap) -> Option<TimeSpan> {
    let mut greatest = TimeSpan::MAX;
    let values = headers.get_all(CACHE_CONTROL).iter();
    if !headers.contains_key(CACHE_CONTROL) && headers.contains_key(PRAGMA) {
        return None;
    }
    for value in values {
        for directive in value.to_str().ok()?.split(',') {
            let (name, argument) = match directive.split_once('=') {
                Some((name, argument)) => (name, Some(argument.trim())),
                None => (directive, None),
            };
            match (name.trim().to_ascii_lowercase().as_str(), argument) {
                ("" | "max-stale" | "no-transform" | "only-if-cached", _) => {}
                ("max-age", Some(age)) => {
                    let age = TimeSpan::from_secs(age.parse::<u32>().ok()?.into());
                    greatest = greatest.min(age);
                }
                _ => return None,
            }
        }
    }
    Some(greatest)
}

#[cfg(test)]
mod tests;
