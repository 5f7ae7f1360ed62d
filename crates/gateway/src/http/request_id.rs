//! The id of a request: for its upstream, in the response if that is of the gateway, in the log and in traces.

use http::{HeaderMap, HeaderValue};
use tidegate_headers::{REQUEST_ID, random_request_id};

use crate::http::header_flags::HeaderFlags;

/// The id of a request.
#[derive(Clone, Debug)]
pub(crate) enum RequestId {
    /// The request brought none that counts. Random bits.
    Random([u8; 16]),
    /// A trusted proxy sent it.
    Received(HeaderValue),
}

impl RequestId {
    /// The id of a request with these headers.
    #[inline]
    pub(crate) fn of_request(headers: &HeaderMap, flags: HeaderFlags, is_trusted: bool) -> Self {
        let is_kept = is_trusted && flags.contains(HeaderFlags::REQUEST_ID);
        let received = if is_kept { headers.get(REQUEST_ID) } else { None };
        received.map_or_else(Self::random, |id| Self::Received(id.clone()))
    }

    /// An id for a request that is not read.
    pub(crate) fn random() -> Self {
        Self::Random(fastrand::u128(..).to_be_bytes())
    }

    /// The id as a header has it.
    #[inline]
    pub(crate) fn to_value(&self) -> HeaderValue {
        match self {
            Self::Random(bits) => random_request_id(*bits),
            Self::Received(id) => id.clone(),
        }
    }
}
