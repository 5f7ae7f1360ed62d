//! A request that others describe, as the gateway would see it.
//!
//! The steps and their order are those of the gateway, so a request that the gateway rejects as ambiguous is rejected here
//! too, and no spelling of a path avoids a limit. Routes do not matter: a request without one is checked too.

use std::fmt;
use std::net::IpAddr;

use http::header::{HOST, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method};
use smallvec::SmallVec;
use tidegate_policy::{
    ActivePolicy, Facts, HeaderError, PathError, RequestError, check_method, is_proxy_header, requested_host,
};
use tidegate_store::Clock;

/// A request before it is checked for ambiguities.
pub(crate) struct DescribedRequest<'r> {
    pub(crate) method: &'r [u8],
    /// The host if it is described apart from the headers.
    pub(crate) host: Option<HeaderValue>,
    /// The path, and the query if there is one.
    pub(crate) target: &'r [u8],
    pub(crate) headers: HeaderMap,
    /// The address at the other end of the connection on which the request arrived.
    pub(crate) peer: IpAddr,
}

/// A request whose host, path and headers are normalised.
pub(crate) struct NormalRequest {
    pub(crate) method: Method,
    /// Empty if the request has none, as HTTP/1.0 allows.
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) peer: IpAddr,
}

/// Why a request cannot be checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DescribedRequestError {
    /// The request as it is described is not one that can be sent.
    #[error("{0}")]
    Invalid(&'static str),
    /// The method or the host is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The path is ambiguous.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The headers are ambiguous, or a token or an API key is not valid.
    #[error(transparent)]
    Headers(#[from] HeaderError),
}

impl NormalRequest {
    /// Normalises a request; an error if it has two meanings, or a token or an API key that the policy rejects.
    pub(crate) fn new(
        policy: &ActivePolicy,
        clock: &dyn Clock,
        request: DescribedRequest<'_>,
    ) -> Result<Self, DescribedRequestError> {
        let DescribedRequest { method, host, target, mut headers, peer } = request;
        let peer = peer.to_canonical();
        let method =
            Method::from_bytes(method).map_err(|_| DescribedRequestError::Invalid("invalid method"))?;
        let path = path(target)?;
        check_method(method.as_str(), path.path())?;
        trim_values(&mut headers);
        let host = match only_host(host, &headers)? {
            Some(header) => {
                let host = requested_host(&header)?.into_owned();
                headers.insert(HOST, header);
                host
            }
            None => String::new(),
        };
        let target = policy.matcher.target(&host, path.path())?;
        let (plan, path) = (policy.matcher.plan(), target.path.into_owned());
        let underscored = target.route.map_or(plan.http, |route| route.http).underscore_headers;
        let addresses = plan.identities.addresses();
        let is_trusted = addresses.trusts(peer);
        let rules = policy.matcher.header_rules();
        // The proxy that asks forwards the request with all of its headers.
        rules.check_spelling(&headers, underscored)?;
        rules.apply(&mut headers, is_trusted, underscored)?;
        if is_trusted {
            addresses.check(&headers, peer)?;
        } else {
            remove_proxy_headers(&mut headers);
        }
        policy.matcher.check_credentials(&headers, policy.directory.as_deref(), || clock.now())?;
        Ok(Self { method, host, path, headers, peer })
    }

    pub(crate) fn facts(&self) -> Facts<'_> {
        let Self { method, host, path, headers, peer } = self;
        Facts { method: method.as_str(), host, path, headers, peer: *peer }
    }
}

// The path and the headers may contain secrets of clients.

impl fmt::Debug for DescribedRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DescribedRequest").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl fmt::Debug for NormalRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, host, peer, .. } = self;
        let mut shown = f.debug_struct("NormalRequest");
        shown.field("method", method).field("host", host).field("peer", peer).finish_non_exhaustive()
    }
}

/// The host of a request. It may be stated twice only in the same words.
fn only_host(
    stated: Option<HeaderValue>,
    headers: &HeaderMap,
) -> Result<Option<HeaderValue>, DescribedRequestError> {
    let mut hosts = headers.get_all(HOST).iter();
    let header = hosts.next();
    if hosts.next().is_some() {
        return Err(RequestError::RepeatedHost.into());
    }
    let Some(mut stated) = stated else { return Ok(header.cloned()) };
    trim(&mut stated);
    if header.is_some_and(|header| *header != stated) {
        return Err(DescribedRequestError::Invalid("`host` and the header `host` differ; send one of them"));
    }
    Ok(Some(stated))
}

/// The path and query of a target. Servers disagree about what a fragment or another host in it means.
fn path(target: &[u8]) -> Result<PathAndQuery, DescribedRequestError> {
    let invalid = DescribedRequestError::Invalid;
    if !target.starts_with(b"/") && target != b"*" {
        return Err(invalid("the path must begin with `/`; send it without scheme and host"));
    }
    if target.contains(&b'#') {
        return Err(invalid("the path contains `#`, which must be percent-encoded"));
    }
    PathAndQuery::try_from(target)
        .map_err(|_| invalid("the path contains characters that must be percent-encoded"))
}

/// Removes white space around the values of headers. HTTP ignores it, so a client has one spelling of its name.
fn trim_values(headers: &mut HeaderMap) {
    headers.values_mut().for_each(trim);
}

fn trim(value: &mut HeaderValue) {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let bytes = value.as_bytes();
    let Some(start) = bytes.iter().position(|byte| !is_space(byte)) else {
        *value = HeaderValue::from_static("");
        return;
    };
    let end = bytes.iter().rposition(|byte| !is_space(byte)).map_or(bytes.len(), |last| last + 1);
    if end - start < bytes.len()
        // A part of a valid value is valid.
        && let Some(trimmed) = bytes.get(start..end).and_then(|bytes| HeaderValue::from_bytes(bytes).ok())
    {
        *value = trimmed;
    }
}

/// Removes the headers that only a trusted proxy may send.
fn remove_proxy_headers(headers: &mut HeaderMap) {
    let names: SmallVec<[HeaderName; 8]> =
        headers.keys().filter(|name| is_proxy_header(name.as_str())).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_are_trimmed_at_both_ends_only() {
        let mut headers = HeaderMap::new();
        let sent = ["k", " k", "k\t", " \t k k \t ", " ", ""];
        for value in sent {
            headers.append("x-a", HeaderValue::from_static(value));
        }
        trim_values(&mut headers);
        let trimmed: Vec<_> = headers.get_all("x-a").iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(trimmed, [&b"k"[..], b"k", b"k", b"k k", b"", b""]);
    }

    #[test]
    fn host_in_two_spellings_is_rejected() {
        let value = HeaderValue::from_static;
        let mut headers = HeaderMap::new();
        assert!(only_host(None, &headers).unwrap().is_none());
        assert_eq!(only_host(Some(value(" a ")), &headers).unwrap().unwrap(), "a");
        headers.append(HOST, value("a"));
        assert_eq!(only_host(None, &headers).unwrap().unwrap(), "a");
        assert_eq!(only_host(Some(value("a")), &headers).unwrap().unwrap(), "a");
        assert!(only_host(Some(value("b")), &headers).is_err());
        headers.append(HOST, value("a"));
        assert!(only_host(None, &headers).is_err());
    }

    #[test]
    fn debug_output_has_no_path_and_no_headers() {
        let headers: HeaderMap =
            [(http::header::COOKIE, HeaderValue::from_static("secret"))].into_iter().collect();
        let peer = IpAddr::from([192, 0, 2, 1]);
        let described = DescribedRequest { method: b"GET", host: None, target: b"/secret", headers, peer };
        let shown = format!("{described:?}");
        assert!(shown.contains("192.0.2.1") && !shown.contains("secret"), "{shown}");
        let DescribedRequest { headers, .. } = described;
        let (host, path) = (String::new(), "/secret".to_owned());
        let shown = format!("{:?}", NormalRequest { method: Method::GET, host, path, headers, peer });
        assert!(shown.contains("GET") && !shown.contains("secret"), "{shown}");
    }
}
