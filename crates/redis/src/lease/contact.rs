//! Requests to Redis. They run as tasks of the link, so that a decision that is given up does not lose a grant; decisions
//! that wait for the same counter share a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate_core::{Algorithm, CounterKey, Limit, Timestamp};
use tidegate_store::StoreError;
use tokio::sync::oneshot;

use super::block::{ContactReason, LeaseBlock, RequestOrigin};
use super::report::{LeaseEvents, count};
use super::request::{LeaseAction, LeaseReply, LeaseRequest, LeaseStatus};
use super::table::{LeaseSlot, LeaseTable, SlotAddress};
use crate::config::TimeSource;
use crate::invalidation::InvalidationQueue;
use crate::key::KeyName;
use crate::link::{Link, is_unsent};
use crate::nodes::{NodeCount, NodeId};
use crate::operation::{Operation, OperationReply};

/// The time between two steps of the settlement.
const STEP: Duration = Duration::from_millis(20);
/// A step looks at one shard in this many, so that every counter is looked at about once in 320 ms.
const STEPS: usize = 16;
/// The most counters in one call, so that Redis is not blocked for long.
pub(super) const CALL_MAX: usize = 64;

/// The counters of a node and the way to Redis.
#[derive(Debug)]
pub(super) struct LeaseNode {
    pub(super) link: Arc<Link>,
    pub(super) table: LeaseTable,
    pub(super) id: NodeId,
    pub(super) events: LeaseEvents,
    /// Where the other nodes are told of refunds; `None` for a store of its own.
    pub(super) changes: Option<InvalidationQueue>,
    nodes: Arc<NodeCount>,
    sequence: AtomicU64,
    /// Requests that wait to be sent together.
    outbox: Mutex<Vec<ReadyRequest>>,
}

/// Why Redis did not reply to a request; each waiting decision gets a copy.
#[derive(Clone, Debug)]
pub(super) enum ContactFailure {
    /// Redis is unreachable or too slow.
    Unavailable(String),
    /// The request was not sent.
    NotSent(String),
    /// The reply is invalid.
    Protocol(String),
    /// The algorithm cannot be leased.
    Unsupported(Algorithm),
}

impl ContactFailure {
    /// Why the script has left the entry alone, if it has.
    pub(super) fn of_status(status: LeaseStatus) -> Option<Self> {
        status.entry_error().map(|reason| Self::Protocol(reason.to_owned()))
    }
}

impl From<&StoreError> for ContactFailure {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::Protocol { reason } => Self::Protocol(reason.clone()),
            StoreError::Unsupported { algorithm } => Self::Unsupported(*algorithm),
            StoreError::Unavailable(source) if is_unsent(error) => Self::NotSent(source.to_string()),
            StoreError::Unavailable(source) => Self::Unavailable(source.to_string()),
            StoreError::TooManyLimits { .. } => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<ContactFailure> for StoreError {
    fn from(failure: ContactFailure) -> Self {
        match failure {
            ContactFailure::Unavailable(reason) | ContactFailure::NotSent(reason) => {
                Self::Unavailable(reason.into())
            }
            ContactFailure::Protocol(reason) => Self::Protocol { reason },
            ContactFailure::Unsupported(algorithm) => Self::Unsupported { algorithm },
        }
    }
}

/// A request that is ready to be sent, and the counter that it is for.
#[derive(Debug)]
pub(super) struct ReadyRequest {
    request: LeaseRequest,
    contact: SlotContact,
}

/// The counter of a request, and why it was made.
#[derive(Debug)]
struct SlotContact {
    address: SlotAddress,
    sequence: u64,
    reason: ContactReason,
}

/// The result of a request that a decision waits for.
pub(super) type ContactResult = oneshot::Receiver<Result<(), ContactFailure>>;

impl LeaseNode {
    /// A node without counters.
    pub(super) fn new(link: Arc<Link>, nodes: Arc<NodeCount>, changes: Option<InvalidationQueue>) -> Self {
        Self {
            changes,
            table: LeaseTable::new(link.config().max_memory),
            id: NodeId::random(),
            events: LeaseEvents::default(),
            nodes,
            sequence: AtomicU64::new(0),
            outbox: Mutex::default(),
            link,
        }
    }

    /// The time that counts for leases: the caller's if traces are replayed, otherwise that of the node's clock.
    #[inline]
    pub(super) fn local_time(&self, now: Timestamp) -> Timestamp {
        match self.link.config().time {
            TimeSource::Server => self.link.clock().now(),
            TimeSource::Caller => now,
        }
    }

    /// A counter of which nothing is known, and the name of its leases.
    pub(super) fn new_block(&self, key: CounterKey<'_>, limit: &Limit) -> (KeyName, LeaseBlock) {
        (self.link.names().lease(key), LeaseBlock::new(*limit, self.next_sequence()))
    }

    fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Starts a request for a counter. `None` if there is nothing to tell Redis.
    pub(super) fn prepare(
        &self,
        slot: &mut LeaseSlot,
        reason: ContactReason,
        now: Timestamp,
    ) -> Option<ReadyRequest> {
        let sequence = self.next_sequence();
        let origin = RequestOrigin { node: self.id, sequence, nodes: self.nodes.get() };
        if slot.block.has_expired(now) {
            count(&self.events.expired, 1);
        }
        let action = slot.block.request(origin, reason, now)?;
        let request = LeaseRequest { key: slot.name.clone(), limit: Some(*slot.block.limit()), action };
        Some(ReadyRequest {
            request,
            contact: SlotContact { address: slot.address.clone(), sequence, reason },
        })
    }

    /// Forgets what is known of a counter. Returns the request that releases what Redis holds for this node, if there is any.
    pub(super) fn forget(&self, slot: &mut LeaseSlot, now: Timestamp) -> Option<ReadyRequest> {
        slot.block.forget();
        slot.waiters.clear();
        // A trace settles at its own times.
        let is_live = self.link.config().time == TimeSource::Server;
        (is_live && slot.block.is_due(now))
            .then(|| self.prepare(slot, ContactReason::Settlement, now))
            .flatten()
    }

    /// Sends a request in the background, together with others that are made before the link gets to it.
    pub(super) fn send(self: &Arc<Self>, ready: ReadyRequest, now: Timestamp) {
        let node = Arc::clone(self);
        if self.link.config().time == TimeSource::Caller {
            // Requests with different times cannot share a call.
            self.link.spawn(async move { node.exchange([ready], now).await });
            return;
        }
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        outbox.push(ready);
        let is_first = outbox.len() == 1;
        drop(outbox);
        if is_first {
            self.link.spawn(async move {
                let ready = std::mem::take(&mut *node.outbox.lock().unwrap_or_else(PoisonError::into_inner));
                node.exchange_all(ready, now).await;
            });
        }
    }

    /// Sends requests in as few calls as possible, all at the same time.
    pub(super) async fn exchange_all(&self, ready: Vec<ReadyRequest>, now: Timestamp) {
        let most = if self.link.has_slots() { 1 } else { CALL_MAX };
        if ready.len() <= most {
            return self.exchange(ready, now).await;
        }
        let mut ready = ready.into_iter();
        let mut batches = Vec::new();
        while ready.len() > 0 {
            batches.push(self.exchange(ready.by_ref().take(most).collect::<Vec<_>>(), now));
        }
        join_all(batches).await;
    }

    /// Sends requests in one call and applies the replies.
    async fn exchange(&self, batch: impl IntoIterator<Item = ReadyRequest>, now: Timestamp) {
        let split = |ready: ReadyRequest| (ready.request, ready.contact);
        let (requests, mut batch): (Vec<_>, SmallVec<[SlotContact; 1]>) =
            batch.into_iter().map(split).unzip();
        let result = self.call(requests, now).await;
        let received = self.local_time(now);
        match result {
            Ok(replies) => {
                for (ready, reply) in batch.iter().zip(&replies) {
                    self.apply(ready, reply, received);
                }
                batch.drain(..replies.len().min(batch.len()));
                self.fail(&batch, &ContactFailure::Protocol("too few replies".to_owned()));
            }
            Err(error) => self.fail(&batch, &ContactFailure::from(&error)),
        }
    }

    /// Sends requests in one call.
    pub(super) async fn call(
        &self,
        requests: Vec<LeaseRequest>,
        now: Timestamp,
    ) -> Result<Vec<LeaseReply>, StoreError> {
        match self.link.call(Operation::Lease(requests), now).await? {
            OperationReply::Leases(replies) => Ok(replies),
            _ => Err(StoreError::Protocol { reason: "no lease in the reply".to_owned() }),
        }
    }

    fn apply(&self, ready: &SlotContact, reply: &LeaseReply, received: Timestamp) {
        if let Some(failure) = ContactFailure::of_status(reply.status) {
            return self.fail(std::slice::from_ref(ready), &failure);
        }
        let waiters = self.table.with_slot(&ready.address, |slot| {
            slot.block.receive(ready.sequence, reply, received);
            std::mem::take(&mut slot.waiters)
        });
        match ready.reason {
            ContactReason::Settlement | ContactReason::Close | ContactReason::Report { .. } => {
                count(&self.events.settlements, 1);
            }
            _ if reply.granted == 0 => count(&self.events.rejections, 1),
            _ => {}
        }
        if reply.granted > 0 {
            count(&self.events.grants, 1);
            count(&self.events.granted_units, reply.granted);
        }
        for waiter in waiters.into_iter().flatten() {
            let _ = waiter.send(Ok(()));
        }
    }

    fn fail(&self, batch: &[SlotContact], failure: &ContactFailure) {
        count(&self.events.failures, batch.len() as u64);
        for ready in batch {
            let waiters = self.table.with_slot(&ready.address, |slot| {
                match failure {
                    ContactFailure::NotSent(_) => slot.block.take_back(ready.sequence),
                    _ => slot.block.give_up(ready.sequence),
                }
                std::mem::take(&mut slot.waiters)
            });
            for waiter in waiters.into_iter().flatten() {
                let _ = waiter.send(Err(failure.clone()));
            }
        }
    }

    /// Settles the counters of some shards that are due, and drops those that are idle.
    pub(super) async fn settle(&self, shards: impl Iterator<Item = usize>, now: Timestamp) {
        let mut due = Vec::new();
        for index in shards {
            let Some(mut shard) = self.table.lock(index) else { continue };
            due.extend(
                shard.iter_mut().filter(|slot| slot.block.is_due(now)).map(|slot| slot.address.clone()),
            );
            shard.drop_idle(now);
        }
        // One call after the other, so that Redis is not blocked. A decision waits for a counter whose settlement is on its
        // way, so each is prepared just before it is sent.
        for addresses in due.chunks(CALL_MAX) {
            let now = self.local_time(now);
            let prepare = |slot: &mut LeaseSlot| {
                slot.block.is_due(now).then(|| self.prepare(slot, ContactReason::Settlement, now)).flatten()
            };
            let ready: Vec<_> = addresses
                .iter()
                .filter_map(|address| self.table.with_slot(address, prepare).flatten())
                .collect();
            if !ready.is_empty() {
                self.exchange_all(ready, now).await;
            }
        }
    }

    /// Settles in the background until the store is dropped.
    pub(super) fn settle_forever(self: &Arc<Self>) {
        let node = Arc::downgrade(self);
        self.link.spawn(async move {
            for step in (0..STEPS).cycle() {
                tokio::time::sleep(STEP).await;
                let Some(node) = node.upgrade() else { return };
                if node.link.is_available() {
                    let now = node.local_time(Timestamp::ZERO);
                    node.settle((step..node.table.len()).step_by(STEPS), now).await;
                }
            }
        });
    }

    /// A request that names the counter `key` only.
    pub(super) fn bare_request(&self, key: CounterKey<'_>, action: LeaseAction) -> LeaseRequest {
        LeaseRequest { key: self.link.names().lease(key), limit: None, action }
    }
}
