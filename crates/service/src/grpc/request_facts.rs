//! A request that a descriptor describes.
//!
//! The entries `method`, `host`, `path` and `remote_address` state these properties; every other entry is a header of that
//! name. Names are compared without case, so that `Host` is not a second host. What the gateway would reject as ambiguous is
//! an error here.

use std::net::IpAddr;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate_policy::ActivePolicy;

use super::message::RateLimitDescriptor;
use super::status::{GrpcError, shown};
use crate::request::{DescribedRequest, NormalRequest};

/// The most headers of a request.
const MAX_HEADERS: usize = 100;

/// Reads a descriptor. Without `remote_address`, the request comes from `peer`.
pub(super) fn read_request(
    policy: &ActivePolicy,
    descriptor: &RateLimitDescriptor,
    peer: IpAddr,
) -> Result<NormalRequest, GrpcError> {
    let mut headers = HeaderMap::new();
    let [mut method, mut host, mut path, mut address] = [None; 4];
    for entry in &descriptor.entries {
        let name = header_name(&entry.key)?;
        let property = match name.as_str() {
            "method" => &mut method,
            "host" => &mut host,
            "path" => &mut path,
            "remote_address" => &mut address,
            _ => {
                let value = header_value(&name, &entry.value)?;
                headers.append(name, value);
                if headers.len() > MAX_HEADERS {
                    return Err(GrpcError::invalid(format!("more than {MAX_HEADERS} headers")));
                }
                continue;
            }
        };
        if property.replace(entry.value.as_str()).is_some() {
            return Err(GrpcError::invalid(format!("the descriptor has two entries `{name}`")));
        }
    }
    let host = host.map(|host| header_value(&http::header::HOST, host)).transpose()?;
    let peer = match address {
        Some(text) => text
            .parse()
            .map_err(|_| GrpcError::invalid("invalid entry `remote_address`: expected an IP address"))?,
        None => peer,
    };
    let (method, target) = (method.unwrap_or("GET").as_bytes(), path.unwrap_or("/").as_bytes());
    NormalRequest::new(policy, DescribedRequest { method, host, target, headers, peer })
        .map_err(|error| GrpcError::invalid(error.to_string()))
}

fn header_name(name: &str) -> Result<HeaderName, GrpcError> {
    HeaderName::try_from(name)
        .map_err(|_| GrpcError::invalid(format!("the entry `{}` is not a header name", shown(name))))
}

fn header_value(name: &HeaderName, value: &str) -> Result<HeaderValue, GrpcError> {
    HeaderValue::try_from(value).map_err(|_| {
        let name = shown(name.as_str());
        GrpcError::invalid(format!("the value of the entry `{name}` is not a header value"))
    })
}
