//! Rejects requests whose size or length has two readings: hyper accepts them, but servers may interpret them differently. All
//! else about the meaning of a request is read by the policy.

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, COOKIE, HeaderValue};
use tidegate_policy::RequestError;

use crate::error::ServeError;
use crate::http::header_flags::HeaderFlags;
use crate::resource_limits::ResourceLimits;

/// Checks the number of headers and the stated length of the body.
pub(crate) fn check_framing(
    headers: &mut HeaderMap,
    flags: HeaderFlags,
    limits: &ResourceLimits,
) -> Result<(), ServeError> {
    // hyper checks this for HTTP/1 only.
    if headers.len() > limits.headers && count_fields(headers) > limits.headers {
        return Err(ServeError::HeadTooLarge);
    }
    if flags.contains(HeaderFlags::CONTENT_LENGTH)
        && let Some(length) = headers.get(CONTENT_LENGTH)
    {
        let length = length.to_str().ok().and_then(|length| length.parse::<u64>().ok());
        let length = length.ok_or(RequestError::Unreadable("Content-Length must be a number"))?;
        if length > limits.body_bytes {
            return Err(ServeError::TooLarge);
        }
        // h2 checks that all are equal. Some servers close the connection of a request that repeats its length.
        if headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
    Ok(())
}

/// The number of fields. HTTP/2 clients may send each cookie in a field of its own; they are forwarded in one.
fn count_fields(headers: &HeaderMap) -> usize {
    headers.len() - headers.get_all(COOKIE).iter().count().saturating_sub(1)
}
