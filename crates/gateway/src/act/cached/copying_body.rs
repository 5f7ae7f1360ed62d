//! A response body that is copied while it is forwarded, and stored once it is complete.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{AGE, CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Frame, SizeHint};
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_headers::{
    REQUEST_ID, SharedUse, is_limit_header, normal_request, owned_headers, varying_headers,
};

use super::CACHE_STATUS;
use super::memory::{ResourceVersion, ResponseMemory, StoredResponse};
use super::plain_get::PlainGet;
use crate::http::hop_headers::is_written_by_gateway;
use crate::http::response_body::{BodyError, ForwardedBody};

/// A body that is copied. It is stored only if it ends as it should: a truncated one fails or is dropped before.
#[derive(Debug)]
pub(crate) struct CopyingBody {
    body: Box<ForwardedBody>,
    /// `None` once it is stored, or cannot be.
    pending: Option<PendingResponse>,
}

/// A response that is being received.
#[derive(Debug)]
pub(super) struct PendingResponse {
    memory: Arc<ResponseMemory>,
    max_bytes: usize,
    key: Box<[u8]>,
    response: StoredResponse,
    /// The length that the server has stated.
    length: Option<u64>,
    copy: Vec<u8>,
    /// The bytes of the memory that it occupies.
    reserved: usize,
}

/// Where a response is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorePlace<'m> {
    pub(super) memory: &'m Arc<ResponseMemory>,
    pub(super) max_bytes: usize,
    /// The state of its resource when it was requested.
    pub(super) version: ResourceVersion,
}

impl PendingResponse {
    /// A response to `request`, which was sent at `now`; `None` if it must not be stored.
    pub(super) fn new(
        request: PlainGet,
        response: &Response<()>,
        place: StorePlace<'_>,
        now: Timestamp,
    ) -> Option<Self> {
        let StorePlace { memory, max_bytes, version } = place;
        let length = match response.headers().get(CONTENT_LENGTH) {
            Some(length) => Some(length.to_str().ok()?.parse().ok()?),
            None => None,
        };
        if length.is_some_and(|length| length > ResponseMemory::largest(max_bytes) as u64) {
            return None;
        }
        let PlainGet { key, others, .. } = request;
        // Copies: the values of a request refer to the buffer that it was read into, which is much larger.
        let copy = |value: &HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
        let varying = varying_headers(response.headers())?;
        // The client did not send what the server has seen in these.
        if varying.iter().any(is_written_by_gateway) {
            return None;
        }
        let varying = varying.into_iter().map(|name| {
            let values = others.get_all(&name).iter().filter_map(copy).collect();
            (name, values)
        });
        let varying = varying.collect();
        let sent = normal_request(http::Uri::default(), others);
        let usage = SharedUse::of(&sent, response, now)?;
        let span = |duration: std::time::Duration| TimeSpan::from_secs(duration.as_secs());
        let response = StoredResponse {
            headers: stored_headers(response.headers()),
            body: Bytes::new(),
            varying,
            received: now,
            generated: now - span(usage.age),
            fresh_for: span(usage.fresh_for),
            allows_stale: usage.allows_stale,
            version,
        };
        let memory = Arc::clone(memory);
        Some(Self { memory, max_bytes, key, response, length, copy: Vec::new(), reserved: 0 })
    }

    /// Copies a part of the body. Returns whether it still fits.
    fn add(&mut self, data: &[u8]) -> bool {
        let (length, capacity) = (self.copy.len() + data.len(), self.copy.capacity());
        let largest = ResponseMemory::largest(self.max_bytes);
        if length > largest {
            return false;
        }
        if length > capacity {
            let grown = length.max(2 * capacity).min(largest);
            if !self.memory.reserve(grown - capacity, self.max_bytes) {
                return false;
            }
            self.reserved += grown - capacity;
            self.copy.reserve_exact(grown - self.copy.len());
        }
        self.copy.extend_from_slice(data);
        true
    }

    /// Stores the response, whose body is complete.
    fn store(mut self) {
        if self.length.is_some_and(|length| length != self.copy.len() as u64) {
            return;
        }
        let response = StoredResponse {
            headers: std::mem::take(&mut self.response.headers),
            varying: std::mem::take(&mut self.response.varying),
            body: Bytes::from(std::mem::take(&mut self.copy).into_boxed_slice()),
            ..self.response
        };
        self.memory.insert(std::mem::take(&mut self.key), response, self.max_bytes);
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if self.reserved > 0 {
            self.memory.release(self.reserved);
        }
    }
}

/// The headers that are served to others: not the length, which follows from the body, and not what is about one request.
fn stored_headers(headers: &HeaderMap) -> HeaderMap {
    let mut headers = owned_headers(headers);
    for name in [AGE, CONTENT_LENGTH, RETRY_AFTER, REQUEST_ID] {
        headers.remove(name);
    }
    let limits = headers.keys().filter(|name| is_limit_header(name) || **name == CACHE_STATUS);
    let limits: Vec<_> = limits.cloned().collect();
    for name in limits {
        headers.remove(name);
    }
    headers
}

impl CopyingBody {
    pub(super) fn new(body: Box<ForwardedBody>, pending: PendingResponse) -> Self {
        let mut copying = Self { body, pending: Some(pending) };
        copying.store_complete();
        copying
    }

    pub(crate) fn limit_chunks(&mut self) {
        self.body.limit_chunks();
    }

    /// Stores the response if nothing more follows.
    fn store_complete(&mut self) {
        if self.body.is_end_stream()
            && let Some(pending) = self.pending.take()
        {
            pending.store();
        }
    }

    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(self.body.poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                // Trailers are not stored, so neither is a response that has them.
                let has_room = match (frame.data_ref(), &mut self.pending) {
                    (Some(data), Some(pending)) => pending.add(data),
                    _ => false,
                };
                if !has_room {
                    self.pending = None;
                }
                self.store_complete();
            }
            Some(Err(_)) => self.pending = None,
            None => {
                if let Some(pending) = self.pending.take() {
                    pending.store();
                }
            }
        }
        Poll::Ready(frame)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
