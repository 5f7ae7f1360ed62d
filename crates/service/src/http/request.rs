//! A request in the form that the endpoints use. It was parsed by `plain` or by hyper.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::{Method, Version};
use hyper::body::Incoming;

use super::body::read_body;
use super::error::HttpError;

/// A request without its body.
pub(super) struct EndpointRequest<'r> {
    pub(super) method: Method,
    pub(super) path: &'r str,
    pub(super) authority: Option<&'r str>,
    pub(super) version: Version,
    pub(super) headers: RequestHeaders<'r>,
}

/// The headers of a request.
pub(super) enum RequestHeaders<'r> {
    Map(HeaderMap),
    /// As they were read. Most endpoints need two or three of them, which does not justify a map.
    Lines(&'r [httparse::Header<'r>]),
}

/// The body of a request.
pub(super) enum EndpointBody<'r> {
    /// It has arrived.
    Whole(&'r [u8]),
    /// It is still to be read.
    Stream(Incoming),
}

/// A body that was read.
pub(super) enum WholeBody<'r> {
    Borrowed(&'r [u8]),
    Owned(Bytes),
}

impl EndpointRequest<'_> {
    /// The host for logs.
    pub(super) fn host(&self) -> String {
        let host = self.headers.values("host").next().map(String::from_utf8_lossy);
        host.as_deref().or(self.authority).unwrap_or_default().to_owned()
    }
}

impl RequestHeaders<'_> {
    /// The values of a header, whose name is in lower case.
    pub(super) fn values<'h>(&'h self, name: &'static str) -> impl Iterator<Item = &'h [u8]> {
        let (map, lines) = match self {
            Self::Map(map) => (Some(map), &[][..]),
            Self::Lines(lines) => (None, *lines),
        };
        let of_map = map.map(|map| map.get_all(name).iter().map(HeaderValue::as_bytes));
        let of_lines = lines.iter().filter(move |line| line.name.eq_ignore_ascii_case(name));
        of_map.into_iter().flatten().chain(of_lines.map(|line| line.value))
    }

    /// The value of a header that appears once.
    pub(super) fn single(&self, name: &'static str) -> Option<&[u8]> {
        let mut values = self.values(name);
        let value = values.next()?;
        values.next().is_none().then_some(value)
    }

    /// All names, in any case, and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let (map, lines) = match self {
            Self::Map(map) => (Some(map), &[][..]),
            Self::Lines(lines) => (None, *lines),
        };
        let of_map = map.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_bytes()));
        of_map.chain(lines.iter().map(|line| (line.name, line.value)))
    }
}

impl<'r> EndpointBody<'r> {
    /// The whole body, if it has at most `max` bytes and arrives in time.
    pub(super) async fn read(self, max: usize) -> Result<WholeBody<'r>, HttpError> {
        match self {
            Self::Whole(body) if body.len() > max => Err(HttpError::TooLarge { max }),
            Self::Whole(body) => Ok(WholeBody::Borrowed(body)),
            Self::Stream(body) => Ok(WholeBody::Owned(Box::pin(read_body(body, max)).await?)),
        }
    }
}

impl std::ops::Deref for WholeBody<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(body) => body,
            Self::Owned(body) => body,
        }
    }
}
