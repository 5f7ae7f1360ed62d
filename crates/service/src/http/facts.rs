//! A request as the gateway would see it.
//!
//! The steps and their order are those of the gateway, so a request that the gateway rejects as ambiguous is rejected here
//! too, and no spelling of a path avoids a limit. Routes do not matter: a request without one is checked too.

use std::net::IpAddr;

use http::header::{CONNECTION, HOST, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method};
use smallvec::SmallVec;
use tidegate_policy::{ActivePolicy, Facts, RequestError, check_method, is_proxy_header, requested_host};

use super::error::{HttpError, invalid};
use super::message::{HeadersMessage, RequestMessage};

/// A request before it is checked for ambiguities.
#[derive(Debug)]
pub(super) struct DescribedRequest<'r> {
    pub(super) method: &'r [u8],
    /// `None` if the request has none, as HTTP/1.0 allows.
    pub(super) host: Option<HeaderValue>,
    /// The path, and the query if there is one.
    pub(super) target: &'r [u8],
    pub(super) headers: HeaderMap,
    /// The address at the other end of the connection on which the request arrived.
    pub(super) peer: IpAddr,
}

/// A request whose host, path and headers are normalised.
#[derive(Debug)]
pub(super) struct NormalRequest {
    pub(super) method: Method,
    pub(super) host: String,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) peer: IpAddr,
}

impl NormalRequest {
    /// Normalises a request; an error if it has two meanings.
    pub(super) fn new(policy: &ActivePolicy, request: DescribedRequest<'_>) -> Result<Self, HttpError> {
        let DescribedRequest { method, host, target, mut headers, peer } = request;
        let peer = peer.to_canonical();
        let method = Method::from_bytes(method).map_err(|_| invalid("invalid method"))?;
        let path = path(target)?;
        check_method(method.as_str(), path.path()).map_err(HttpError::Request)?;
        let host = match host {
            Some(header) => {
                let host = requested_host(&header).map_err(HttpError::Request)?.into_owned();
                headers.insert(HOST, header);
                host
            }
            None => String::new(),
        };
        let target = policy.matcher.target(&host, path.path()).map_err(HttpError::Path)?;
        let (plan, path) = (policy.matcher.plan(), target.path.into_owned());
        let underscored = target.route.map_or(plan.http, |route| route.http).underscore_headers;
        let addresses = plan.identities.addresses();
        let is_trusted = addresses.trusts(peer);
        let rules = policy.matcher.header_rules();
        rules.apply(&mut headers, is_trusted, underscored).map_err(HttpError::Headers)?;
        if is_trusted {
            addresses.check(&headers, peer).map_err(HttpError::Headers)?;
        } else {
            remove_proxy_headers(&mut headers);
        }
        Ok(Self { method, host, path, headers, peer })
    }

    /// The request that a message describes.
    pub(super) fn from_message(
        policy: &ActivePolicy,
        message: RequestMessage<'_>,
    ) -> Result<Self, HttpError> {
        let RequestMessage { method, host, path, headers: HeadersMessage(headers), peer } = message;
        let mut hosts = headers.get_all(HOST).iter();
        let header = hosts.next().cloned();
        if hosts.next().is_some() {
            return Err(HttpError::Request(RequestError::RepeatedHost));
        }
        let host = host.map(|host| HeaderValue::from_str(&host.0)).transpose();
        let host = host.map_err(|_| HttpError::Request(RequestError::Host))?;
        if let (Some(host), Some(header)) = (&host, &header)
            && host != header
        {
            return Err(invalid("`host` and the header `host` differ; send one of them"));
        }
        let (method, target) = (method.as_bytes(), path.as_bytes());
        Self::new(policy, DescribedRequest { method, host: host.or(header), target, headers, peer })
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        let Self { method, host, path, headers, peer } = self;
        Facts { method: method.as_str(), host, path, headers, peer: *peer }
    }
}

/// The path and query of a target. Servers disagree about what a fragment or another host in it means.
fn path(target: &[u8]) -> Result<PathAndQuery, HttpError> {
    if !target.starts_with(b"/") && target != b"*" {
        return Err(invalid("the path must begin with `/`; send it without scheme and host"));
    }
    if target.contains(&b'#') {
        return Err(invalid("the path contains `#`, which must be percent-encoded"));
    }
    PathAndQuery::try_from(target)
        .map_err(|_| invalid("the path contains characters that must be percent-encoded"))
}

/// Removes the headers that only a trusted proxy may send.
pub(super) fn remove_proxy_headers(headers: &mut HeaderMap) {
    let names: SmallVec<[HeaderName; 8]> =
        headers.keys().filter(|name| is_proxy_header(name.as_str())).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Removes the headers that belong to a connection and not to the request that it transports.
pub(super) fn remove_connection_headers(headers: &mut HeaderMap) {
    for name in
        [CONNECTION, http::header::TRANSFER_ENCODING, http::header::CONTENT_LENGTH, http::header::UPGRADE]
    {
        headers.remove(name);
    }
}
