//! Rejects or normalizes ambiguous requests: hyper accepts them, but servers may interpret them differently.

use http::header::{CONTENT_LENGTH, COOKIE, HOST, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri, Version};
use tidegate_policy::{RequestError, check_method, check_transfer_encoding, host_header, requested_host};

use crate::error::ServeError;
use crate::http::header_flags::HeaderFlags;
use crate::resource_limits::ResourceLimits;

/// Checks method, size, framing and host of a request. Returns the updated flags of its headers.
pub(crate) fn check_framing(
    parts: &mut Parts,
    mut flags: HeaderFlags,
    limits: &ResourceLimits,
) -> Result<HeaderFlags, ServeError> {
    let headers = &mut parts.headers;
    // hyper checks this for HTTP/1 only.
    if headers.len() > limits.headers && count_fields(headers) > limits.headers {
        return Err(ServeError::HeadTooLarge);
    }
    check_method(parts.method.as_str(), parts.uri.path()).map_err(bad_request)?;
    if flags.contains(HeaderFlags::TRANSFER_ENCODING) {
        check_transfer_encoding(headers).map_err(bad_request)?;
    }
    if flags.contains(HeaderFlags::CONTENT_LENGTH)
        && let Some(length) = headers.get(CONTENT_LENGTH)
    {
        let length = length.to_str().ok().and_then(|length| length.parse::<u64>().ok());
        let length = length.ok_or(ServeError::Framing("Content-Length must be a number"))?;
        if length > limits.body_bytes {
            return Err(ServeError::TooLarge);
        }
        // h2 checks that all are equal. Some servers close the connection of a request that repeats its length.
        if headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
    if let Some(authority) = parts.uri.authority() {
        // RFC 9112, section 3.2: HTTP/1.1 requires one valid Host for every form of the target.
        match host_header(headers) {
            Err(RequestError::NoHost) if parts.version != Version::HTTP_11 => {}
            host => {
                host.and_then(requested_host).map_err(bad_request)?;
            }
        }
        // The authority of HTTP/2 or of an absolute URL overrides the Host header.
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| bad_request(RequestError::Host))?;
        headers.insert(HOST, host);
        flags |= HeaderFlags::HOST;
    }
    Ok(flags)
}

/// The number of fields. HTTP/2 clients may send each cookie in a field of its own; they are forwarded in one.
fn count_fields(headers: &HeaderMap) -> usize {
    headers.len() - headers.get_all(COOKIE).iter().count().saturating_sub(1)
}

/// The `Host` of a request, as it was sent. HTTP/1.0 may omit it. Returns a cheap clone, because the headers change while it
/// is used.
pub(crate) fn request_host(parts: &Parts) -> Result<Option<HeaderValue>, ServeError> {
    match host_header(&parts.headers) {
        Err(RequestError::NoHost) if parts.version == Version::HTTP_10 => Ok(None),
        host => host.map(|host| Some(host.clone())).map_err(bad_request),
    }
}

pub(crate) fn bad_request(error: RequestError) -> ServeError {
    ServeError::Framing(error.reason())
}

/// `uri` with the matched `path`. `None` if the path was sent like this: it was not changed by normalization and not empty.
pub(crate) fn rewrite_uri(uri: &Uri, path: &str, is_normalized: bool) -> Result<Option<Uri>, ServeError> {
    // The path of `http://a?b` is empty, which HTTP/1.1 does not allow.
    let has_path = uri.path_and_query().is_some_and(|sent| sent.as_str().starts_with(['/', '*']));
    if has_path && !is_normalized { Ok(None) } else { with_path(uri, path).map(Some) }
}

fn with_path(uri: &Uri, path: &str) -> Result<Uri, ServeError> {
    let bad = || ServeError::Framing("the path cannot be encoded in a URI");
    let path = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.map_err(|_| bad())?);
    Uri::from_parts(parts).map_err(|_| bad())
}
