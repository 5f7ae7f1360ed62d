//! A bound on the open connections of an upstream, over all workers.
//!
//! Idle connections in the pools of workers count too. A request that finds no free slot closes an idle connection to its
//! upstream, or asks the other workers to close one, and waits.
//!
//! One client must not keep others from a server of HTTP/2, whose connections carry many requests, with a few requests of its
//! own. So the connections of requests that share none use at most half of the slots, and a connection with many aborted
//! requests is replaced later while less than half of the slots are free: it keeps its own until its last request has ended.

use tidegate_tower::bulkhead::BulkheadPermit;
use tokio::sync::watch;

use super::forwarded_request::ForwardedRequest;
use super::pooled_conn::ConnNeed;
use super::server::{Server, UpstreamGroup};
use super::transport::Transport;

/// Asks workers to close idle connections whose slots are needed. Shared by all workers.
#[derive(Debug, Default)]
pub(crate) struct PoolPressure(watch::Sender<u64>);

impl PoolPressure {
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }

    fn request(&self) {
        self.0.send_modify(|requests| *requests = requests.wrapping_add(1));
    }
}

/// The slot of a connection. Boxed, because every request has room for one and few have one.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    _permits: Box<SlotPermits>,
}

#[derive(Debug)]
struct SlotPermits {
    _slot: BulkheadPermit,
    /// For a connection of one request.
    _alone: Option<BulkheadPermit>,
}

/// No connection can be opened: the upstream has as many as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoConnectionSlot;

impl Transport {
    /// The slot for the connection of an attempt; `None` if an idle one can be used or connections are not bounded. Waiting
    /// for it is not part of the attempt: it says nothing about the server.
    pub(crate) async fn reserve_slot(
        &self,
        upstream: &UpstreamGroup,
        server: &Server,
        request: &ForwardedRequest,
    ) -> Result<Option<ConnectionSlot>, NoConnectionSlot> {
        let need = ConnNeed::new(upstream, server, request);
        if self.pool.has_idle(server, need, &*upstream.clock) {
            return Ok(None);
        }
        self.acquire_slot(upstream, need).await
    }

    /// A slot for a new connection; `None` if connections are not bounded.
    pub(super) async fn acquire_slot(
        &self,
        upstream: &UpstreamGroup,
        need: ConnNeed,
    ) -> Result<Option<ConnectionSlot>, NoConnectionSlot> {
        let Some(slots) = &upstream.resilience.connections else { return Ok(None) };
        let alone = match upstream.resilience.lone_connections.as_ref().filter(|_| need.is_alone) {
            Some(slots) => Some(slots.acquire().await.map_err(|_| NoConnectionSlot)?),
            None => None,
        };
        let acquiring = slots.acquire();
        // One connection is closed for one request, here if possible.
        if slots.waiting() > 0 && !self.pool.close_idle(&upstream.servers) {
            self.pressure.request();
        }
        let slot = acquiring.await.map_err(|_| NoConnectionSlot)?;
        let permits = SlotPermits { _slot: slot, _alone: alone };
        Ok(Some(ConnectionSlot { _permits: Box::new(permits) }))
    }
}
