//! The last requests of a node that stops.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate_core::Timestamp;
use tokio::sync::oneshot;

use super::block::ContactReason;
use super::contact::{CALL_MAX, ContactResult, LeaseNode, ReadyRequest};
use super::table::{LeaseSlot, SlotAddress};

/// Requests that are on their way at the same time. More would take Redis longer than the shortest usual `timeout`.
const REQUESTS_MAX: usize = 4 * CALL_MAX;
/// How often a counter is tried whose request has failed, and the time between two attempts.
const ATTEMPTS: usize = 8;
const PAUSE: Duration = Duration::from_millis(50);

/// The counters that a node that stops still has to do with.
#[derive(Default)]
struct OpenCounters {
    addresses: Vec<SlotAddress>,
    /// Requests without a reply. They may bring more units.
    pending: Vec<ContactResult>,
}

impl LeaseNode {
    /// Reports what is spent and releases what is not, of all counters. Without decisions, nothing is leased afterwards. Ends
    /// early if Redis cannot be reached.
    pub(super) async fn close(&self, now: Timestamp) {
        for attempt in 0..ATTEMPTS {
            let OpenCounters { addresses, pending } = self.open_counters(now);
            if addresses.is_empty() && pending.is_empty() {
                return;
            }
            if attempt > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            for addresses in addresses.chunks(REQUESTS_MAX) {
                if !self.link.is_available() {
                    return;
                }
                let now = self.local_time(now);
                let ready = addresses.iter().filter_map(|address| self.prepare_close(address, now)).collect();
                self.exchange_all(ready, now).await;
            }
            // However a request ends, the next attempt sees what it has changed.
            join_all(pending).await;
        }
    }

    fn open_counters(&self, now: Timestamp) -> OpenCounters {
        let (now, mut open) = (self.local_time(now), OpenCounters::default());
        for index in 0..self.table.len() {
            let Some(mut shard) = self.table.lock(index) else { continue };
            for slot in shard.iter_mut() {
                if slot.block.is_pending() {
                    let (waiter, result) = oneshot::channel();
                    slot.waiters.push(waiter);
                    open.pending.push(result);
                } else if slot.block.must_close(now) {
                    open.addresses.push(slot.address.clone());
                }
            }
        }
        open
    }

    fn prepare_close(&self, address: &SlotAddress, now: Timestamp) -> Option<ReadyRequest> {
        let prepare = |slot: &mut LeaseSlot| {
            let is_open = !slot.block.is_pending() && slot.block.must_close(now);
            is_open.then(|| self.prepare(slot, ContactReason::Close, now)).flatten()
        };
        self.table.with_slot(address, prepare).flatten()
    }
}
