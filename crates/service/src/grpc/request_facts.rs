//! A request that a descriptor describes.
//!
//! The entries `method`, `host`, `path` and `remote_address` state these properties; every other entry is a header of that
//! name. Names are compared without case, so that `Host` is not a second host. What the gateway would reject as ambiguous is
//! rejected here too.

use std::net::IpAddr;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate_policy::{ActivePolicy, BodyFacts};
use tidegate_store::Clock;

use super::bad_descriptor::BadDescriptor;
use super::message::RateLimitDescriptor;
use super::status::shown;
use crate::request::{DescribedRequest, OwnedRequest};

/// The most headers of a request.
const MAX_HEADERS: usize = 100;

/// Reads a descriptor. Without `remote_address`, the request comes from `peer`.
pub(super) fn read_request(
    policy: &ActivePolicy,
    descriptor: &RateLimitDescriptor,
    peer: IpAddr,
    clock: &dyn Clock,
) -> Result<OwnedRequest, BadDescriptor> {
    let mut headers = HeaderMap::new();
    let [mut method, mut host, mut path, mut address]: [Option<&[u8]>; 4] = [None; 4];
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
                    return Err(BadDescriptor::new(format_args!("more than {MAX_HEADERS} headers")));
                }
                continue;
            }
        };
        if property.replace(entry.value.as_slice()).is_some() {
            return Err(BadDescriptor::new(format_args!("the descriptor has two entries `{name}`")));
        }
    }
    let host = host.map(|host| header_value(&http::header::HOST, host)).transpose()?;
    let peer = match address {
        Some(text) => address_of(text)
            .ok_or_else(|| BadDescriptor::new("the entry `remote_address` is not an IP address"))?,
        None => peer,
    };
    let (method, target) = (method.unwrap_or(b"GET"), path.unwrap_or(b"/"));
    let body = BodyFacts::Unknown;
    let request = DescribedRequest { method, host, target, headers, peer, body };
    Ok(OwnedRequest::new(policy, clock, request)?)
}

fn address_of(text: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn header_name(name: &str) -> Result<HeaderName, BadDescriptor> {
    HeaderName::try_from(name)
        .map_err(|_| BadDescriptor::new(format_args!("the entry `{}` is not a header name", shown(name))))
}

fn header_value(name: &HeaderName, value: &[u8]) -> Result<HeaderValue, BadDescriptor> {
    HeaderValue::from_bytes(value).map_err(|_| {
        let name = shown(name.as_str());
        BadDescriptor::new(format_args!("the value of the entry `{name}` is not a header value"))
    })
}
