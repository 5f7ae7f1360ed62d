//! A request that others describe, read as the gateway reads those that it receives.
//!
//! A request that the gateway rejects as ambiguous is rejected here too, and no spelling of a path avoids a limit. Routes do not
//! matter: a request without one is checked too.

use std::net::IpAddr;

use http::header::{HOST, HeaderValue};
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, Method};
use tidegate_policy::{
    ActivePolicy, BodyFacts, Facts, HeaderTraits, MAX_USER_BODY, ReadOptions, RequestError, RequestHead,
    trim_value,
};
use tidegate_store::Clock;

/// A request before it is read. Like an [`OwnedRequest`] it may contain secrets of clients, so it has no `Debug` form.
pub(crate) struct DescribedRequest<'r> {
    pub(crate) method: &'r [u8],
    /// The host if it is described apart from the headers.
    pub(crate) host: Option<HeaderValue>,
    /// The path, and the query if there is one.
    pub(crate) target: &'r [u8],
    pub(crate) headers: HeaderMap,
    /// The address at the other end of the connection on which the request arrived.
    pub(crate) peer: IpAddr,
    pub(crate) body: BodyFacts<'r>,
}

/// A request with one meaning, which outlives the message that describes it.
pub(crate) struct OwnedRequest {
    pub(crate) method: Method,
    /// `None` if the message does not tell it.
    pub(crate) host: Option<String>,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) peer: IpAddr,
    body: Option<Box<DescribedBody>>,
}

/// The body of a request, which outlives the message that describes it.
enum DescribedBody {
    Complete(Vec<u8>),
    Incomplete,
    User(String),
}

impl DescribedBody {
    /// `None` if no rule of the policy reads bodies, or the message does not tell it.
    fn new(policy: &ActivePolicy, body: BodyFacts<'_>) -> Option<Box<Self>> {
        if !policy.matcher.has_body_users() {
            return None;
        }
        Some(Box::new(match body {
            BodyFacts::Unknown => return None,
            BodyFacts::Complete(bytes) if bytes.len() <= MAX_USER_BODY => Self::Complete(bytes.to_vec()),
            BodyFacts::Complete(_) | BodyFacts::Incomplete => Self::Incomplete,
            BodyFacts::User(name) => Self::User(name.to_owned()),
        }))
    }

    fn facts(&self) -> BodyFacts<'_> {
        match self {
            Self::Complete(bytes) => BodyFacts::Complete(bytes),
            Self::Incomplete => BodyFacts::Incomplete,
            Self::User(name) => BodyFacts::User(name),
        }
    }
}

impl OwnedRequest {
    /// Reads a request; an error if it is not one that can be sent, too.
    pub(crate) fn new(
        policy: &ActivePolicy,
        clock: &dyn Clock,
        request: DescribedRequest<'_>,
    ) -> Result<Self, RequestError> {
        let DescribedRequest { method, host, target, mut headers, peer, body } = request;
        let method = Method::from_bytes(method).map_err(|_| RequestError::Unreadable("invalid method"))?;
        let uri = Uri::from(path(target)?);
        let traits = HeaderTraits::trim_and_scan(&mut headers);
        if let Some(host) = host {
            add_host(host, &mut headers)?;
        }
        let head = RequestHead {
            method: method.as_str(),
            uri: &uri,
            version: None,
            headers: &mut headers,
            traits,
            peer,
        };
        // The proxy that asks forwards the request with all of its headers.
        let options = ReadOptions {
            directory: policy.directory.as_deref(),
            needs_route: false,
            removes_headers: false,
        };
        let read = policy.matcher.read(head, options, || clock.now())?;
        let Facts { host, path, peer, .. } = read.facts();
        let (host, path) = (host.map(str::to_owned), path.to_owned());
        if let Some(error) = read.refused {
            return Err(RequestError::Headers(*error));
        }
        let body = DescribedBody::new(policy, body);
        Ok(Self { method, host, path, headers, peer, body })
    }

    pub(crate) fn facts(&self) -> Facts<'_> {
        let Self { method, host, path, headers, peer, body } = self;
        let body = body.as_deref().map_or(BodyFacts::Unknown, DescribedBody::facts);
        Facts { method: method.as_str(), host: host.as_deref(), path, headers, peer: *peer, body }
    }
}

/// Adds a host that is stated apart from the headers. It may be stated twice only in the same words.
fn add_host(mut stated: HeaderValue, headers: &mut HeaderMap) -> Result<(), RequestError> {
    trim_value(&mut stated);
    match headers.get(HOST) {
        None => drop(headers.insert(HOST, stated)),
        Some(header) if *header == stated => {}
        Some(_) => {
            let message = "`host` and the header `host` differ; send one of them";
            return Err(RequestError::Unreadable(message));
        }
    }
    Ok(())
}

/// The path and query of a target. Servers disagree about what a fragment or another host in it means.
fn path(target: &[u8]) -> Result<PathAndQuery, RequestError> {
    let invalid = RequestError::Unreadable;
    if !target.starts_with(b"/") && target != b"*" {
        return Err(invalid("the path must begin with `/`; send it without scheme and host"));
    }
    if target.contains(&b'#') {
        return Err(invalid("the path contains `#`, which must be percent-encoded"));
    }
    PathAndQuery::try_from(target)
        .map_err(|_| invalid("the path contains characters that must be percent-encoded"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_in_two_spellings_is_rejected() {
        let value = HeaderValue::from_static;
        let mut headers = HeaderMap::new();
        assert!(add_host(value(" a "), &mut headers).is_ok());
        assert_eq!(headers[HOST], "a");
        assert!(add_host(value("a"), &mut headers).is_ok());
        assert!(add_host(value("b"), &mut headers).is_err());
        assert_eq!(headers.len(), 1);
    }
}
