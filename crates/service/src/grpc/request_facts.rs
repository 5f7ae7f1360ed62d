//! A request that a descriptor describes, checked like one of the gateway.
//!
//! The entries `method`, `host`, `path` and `remote_address` state these properties; every other entry is a header of that
//! name. What the gateway would reject as ambiguous is an error here.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate_policy::{Facts, Matcher, check_method, normalize_host};

use super::message::RateLimitDescriptor;
use super::status::GrpcError;

/// A normalised request.
pub(super) struct RequestDescription<'d> {
    method: &'d str,
    host: Cow<'d, str>,
    path: Cow<'d, str>,
    headers: HeaderMap,
    peer: IpAddr,
}

impl<'d> RequestDescription<'d> {
    /// Reads a descriptor. Without `remote_address`, the request comes from `peer`.
    pub(super) fn read(
        matcher: &Matcher,
        descriptor: &'d RateLimitDescriptor,
        peer: IpAddr,
    ) -> Result<Self, GrpcError> {
        let mut headers = HeaderMap::with_capacity(descriptor.entries.len());
        let [mut method, mut host, mut path, mut address] = [None; 4];
        for entry in &descriptor.entries {
            let property = match entry.key.as_str() {
                "method" => &mut method,
                "host" => &mut host,
                "path" => &mut path,
                "remote_address" => &mut address,
                name => {
                    headers.append(header_name(name)?, header_value(name, &entry.value)?);
                    continue;
                }
            };
            if property.replace(entry.value.as_str()).is_some() {
                return Err(GrpcError::invalid(format!("the descriptor has two entries `{}`", entry.key)));
            }
        }
        let (method, path) = (method.unwrap_or("GET"), path.unwrap_or("/"));
        // Rules match the path, which Envoy passes on with the query.
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        check_method(method, path).map_err(|error| GrpcError::invalid(error.reason()))?;
        let host = match host {
            Some(host) if !host.is_empty() => {
                normalize_host(host).ok_or_else(|| GrpcError::invalid("invalid entry `host`"))?
            }
            _ => Cow::Borrowed(""),
        };
        let target = matcher.target(&host, path);
        let target = target.map_err(|error| GrpcError::invalid(format!("invalid entry `path`: {error}")))?;
        let peer = match address {
            Some(text) => text
                .parse::<IpAddr>()
                .map_err(|_| GrpcError::invalid("invalid entry `remote_address`: expected an IP address"))?
                .to_canonical(),
            None => peer,
        };
        let http = target.route.map_or(matcher.plan().http, |route| route.http);
        let addresses = matcher.plan().identities.addresses();
        let is_trusted = addresses.trusts(peer);
        let ambiguous = |error: tidegate_policy::HeaderError| GrpcError::invalid(error.to_string());
        let rules = matcher.header_rules();
        rules.apply(&mut headers, is_trusted, http.underscore_headers).map_err(ambiguous)?;
        if is_trusted {
            addresses.check(&headers, peer).map_err(ambiguous)?;
        }
        let path = target.path;
        Ok(Self { method, host, path, headers, peer })
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        let Self { method, host, path, headers, peer } = self;
        Facts { method, host, path, headers, peer: *peer }
    }
}

fn header_name(name: &str) -> Result<HeaderName, GrpcError> {
    HeaderName::try_from(name)
        .map_err(|_| GrpcError::invalid(format!("the entry `{name}` is not a header name")))
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, GrpcError> {
    HeaderValue::try_from(value)
        .map_err(|_| GrpcError::invalid(format!("the value of the entry `{name}` is not a header value")))
}
