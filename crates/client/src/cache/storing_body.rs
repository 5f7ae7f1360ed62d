//! A body that is stored while it is read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::table::CacheEntry;
use super::{CacheableGet, ResponseCache};
use crate::error::BoxError;
use crate::transport::TransportBody;

/// Passes a body on, and stores a copy of it once it is complete.
pub(super) struct StoringBody {
    body: TransportBody,
    /// `None` once it is stored, or if it cannot be.
    pending: Option<PendingEntry>,
}

/// A response whose body is being read. Its memory counts from the beginning.
pub(super) struct PendingEntry {
    cache: Arc<ResponseCache>,
    get: CacheableGet,
    entry: CacheEntry,
    largest: usize,
    copy: Vec<u8>,
    /// The bytes of the cache that it occupies.
    reserved: usize,
}

impl StoringBody {
    pub(super) fn new(body: TransportBody, pending: PendingEntry) -> Self {
        let mut storing = Self { body, pending: Some(pending) };
        storing.store_complete();
        storing
    }

    /// Stores the response if nothing more follows.
    fn store_complete(&mut self) {
        if self.body.is_end_stream()
            && let Some(pending) = self.pending.take()
        {
            pending.store();
        }
    }
}

impl PendingEntry {
    pub(super) fn new(
        cache: Arc<ResponseCache>,
        get: CacheableGet,
        entry: CacheEntry,
        largest: usize,
    ) -> Option<Self> {
        let mut pending = Self { cache, get, entry, largest, copy: Vec::new(), reserved: 0 };
        pending.reserve(pending.entry.size).then_some(pending)
    }

    fn reserve(&mut self, bytes: usize) -> bool {
        let has_room = self.cache.table().reserve(bytes, self.cache.max_bytes);
        self.reserved += if has_room { bytes } else { 0 };
        has_room
    }

    /// Copies a part of the body. Returns whether it still fits.
    fn add(&mut self, data: &[u8]) -> bool {
        let (length, capacity) = (self.copy.len() + data.len(), self.copy.capacity());
        if length > self.largest {
            return false;
        }
        if length > capacity {
            let grown = length.max(2 * capacity).min(self.largest);
            if !self.reserve(grown - capacity) {
                return false;
            }
            self.copy.reserve_exact(grown - self.copy.len());
        }
        self.copy.extend_from_slice(data);
        true
    }

    fn store(mut self) {
        let (mut entry, copy) = (self.entry.clone(), std::mem::take(&mut self.copy));
        entry.size += copy.len();
        entry.body = Bytes::from(copy.into_boxed_slice());
        self.cache.table().release(std::mem::take(&mut self.reserved));
        self.cache.insert(&self.get, entry);
    }
}

impl Drop for PendingEntry {
    fn drop(&mut self) {
        if self.reserved > 0 {
            self.cache.table().release(self.reserved);
        }
    }
}

impl Body for StoringBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                let data = frame.data_ref().map_or(&[][..], Bytes::as_ref);
                if this.pending.as_mut().is_some_and(|pending| !pending.add(data)) {
                    this.pending = None;
                }
                this.store_complete();
            }
            Some(Err(_)) => this.pending = None,
            None => {
                if let Some(pending) = this.pending.take() {
                    pending.store();
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
