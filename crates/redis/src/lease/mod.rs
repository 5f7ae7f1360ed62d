//! The lease store: a node leases a block of units from Redis, spends it locally and settles.
//!
//! Law: replaying every admitted request at its store time against the same algorithm never finds one that does not fit.
//!
//! # Protocol
//!
//! A Redis entry holds the counter and one record per node with a lease: the sequence number of the node's last request,
//! the lease's epoch, the units granted `G'` and spent `S'` so far, and an expiry in server time. A node has at most one
//! request in flight per counter. It reports `S`, the units it has spent, and `G`, those it has spent or can still spend.
//! The script
//! - ignores a request whose sequence number is not larger than the stored one (duplicated or late),
//! - charges `S − S'` (token bucket) at the time of the settlement; window units were charged when they were granted,
//! - releases `G' − G`: units that the node returned, or grants whose reply it never received,
//! - grants a block, and renews the expiry.
//!
//! An epoch is the sequence number of the request that created the record, so the epochs of a node grow. A node that learns
//! of another epoch drops the units of the old one. A record newer than the newest epoch that the node knows never reached
//! it, and is released; an older one was forgotten (the node's table was full), and counts as spent.
//!
//! # Why nothing is admitted in excess
//!
//! *Token bucket.* Let `B` be the level of the bucket in Redis, `O` all leased units that are not settled, `u` the part of `O`
//! that is spent, and `R` the level of an ideal bucket that is charged at the moment of spending. A grant requires `B + O ≤
//! burst`, and a settlement moves units from `O` to `B`; so `B + O ≤ burst` always holds. `R ≤ B + u` always holds: spending
//! adds the same to `R` and `u`; settling moves units from `u` to `B`; and draining takes `d` from `B` down to 0 and `d` from
//! `R` down to 0, which keeps `R ≤ B + u`. Hence `R ≤ B + O ≤ burst`: every admitted request fits the ideal bucket.
//! An expired lease is charged in full at its expiry. Its holder stopped spending before: it counts the lifetime from the
//! moment it *sent* the request, on its own monotonic clock, less 1 % for drift and 50 ms for the delay between the check
//! and the use.
//!
//! *Windows.* Units are charged to the window of their grant, and spent only in it: the node takes the server time of the
//! reply plus the time since it *sent* the request, plus a margin, as the latest possible server time. Unspent units return
//! to their window. So the count in Redis is never less than what was spent in the window, and never more than the limit.
//! Within a window the share of the previous one only falls, so a unit that fitted at its grant fits when it is spent.
//!
//! *Store time* is estimated as the server time of the last reply plus the time since it was *received*. That is not before
//! the grant and not after the moment of spending, which is all that the arguments above need.
//!
//! *Reset.* Leased units stay occupied until their holder settles next; what it has spent by then counts as spent before the
//! reset. *Overage* beyond the lease is sent as a debt; a debt whose request has an unknown result is not sent again.
//!
//! *Refunds.* Units that the node has not reported become spendable again. Of what was reported, Redis gives units back: from a
//! bucket only what cannot have drained since the charge, so `B` falls by no more than `R` would; to a window only if the
//! charge was made in it, and never units that are leased. What Redis lacks because another node has not reported it is given back
//! when that node has. A refund whose result is unknown is an error and not sent again.
//!
//! *Two limits.* While some nodes have the old limit of a rule and some the new one, the entry has a counter for each, and
//! every lease counts under both, so each node gets only what its limit admits on top of all leases. A lease ends with the
//! first window of either limit that ends. Only leases granted before the second limit was met may outlive a window of it.
//!
//! *Stop.* A node that stops reports all that it has spent and releases the rest, with its last request for each counter. Units of
//! a node that is killed return as described below.
//!
//! # Sizes
//!
//! The first block is the node's fair share of what nodes without a lease can get: 300 units over three nodes start as
//! 100/100/100. Later blocks follow the demand and take at most half of what is left, so blocks shrink near the limit. A
//! periodic settlement keeps what the node needs for twice the interval and releases the rest. A window that is rarely used
//! is settled less often, because its settlement only returns units. A bucket drains only what is settled, so a node reports
//! the first units of a large block early. A rejection is local until Redis may have units again; while other nodes hold
//! units that they may release, the node asks more often.
//!
//! A lease of a token bucket lives for a sixth of the time in which the bucket refills, at least 2 s and at most 10 s: units
//! of a killed node are charged then and drain. Leases of windows last until their window ends.

mod block;
mod close;
mod contact;
mod decide;
mod demand;
mod refund;
mod report;
mod request;
#[cfg(test)]
mod simulation;
mod table;
#[cfg(test)]
mod utilisation_tests;

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Check, CounterKey, Decision, Refund, Timestamp, peek};
use tidegate_store::{Clock, Override, Store, StoreError, decide_in_order};

use crate::config::{RedisConfig, TimeSource};
use crate::invalidation::InvalidationQueue;
use crate::link::{Link, LinkError};
use crate::nodes::NodeCount;
use block::{ContactReason, LeaseBlock};
use contact::{ContactFailure, LeaseNode};
use decide::PeekLedger;
pub(crate) use refund::LeaseRefund;
pub use report::LeaseReport;
pub(crate) use request::{LeaseAction, LeaseReply, LeaseRequest, LeaseStatus};
use table::LeaseTable;

/// Counters in Redis, of which nodes lease blocks of units. See the module's documentation for the protocol.
///
/// Supports `token_bucket`, `fixed_window` and `sliding_window_counter`.
#[derive(Clone, Debug)]
pub struct LeaseStore {
    node: Arc<LeaseNode>,
}

impl LeaseStore {
    /// A store with a link of its own, for `config.nodes` nodes.
    pub fn connect(config: RedisConfig, clock: Arc<dyn Clock>) -> Self {
        let nodes = Arc::new(NodeCount::new(config.nodes));
        Self::new(Arc::new(Link::new(config, clock)), nodes, None)
    }

    /// A store on `link`, whose limits are shared by `nodes`. The other nodes are told of refunds through `changes`.
    pub(crate) fn new(link: Arc<Link>, nodes: Arc<NodeCount>, changes: Option<InvalidationQueue>) -> Self {
        let is_live = link.config().time == TimeSource::Server;
        let node = Arc::new(LeaseNode::new(link, nodes, changes));
        if is_live {
            node.settle_forever();
        }
        Self { node }
    }

    /// Settles all leases that are due at `now`. With the server's time this happens in the background; a trace that is
    /// replayed calls it at its own times.
    pub async fn settle(&self, now: Timestamp) {
        let now = self.node.local_time(now);
        self.node.settle(0..self.node.table.len(), now).await;
    }

    /// Reports what this node has spent of all leases, and releases what it has not. For the end of the process, after the last
    /// decision. Gives up if Redis does not reply.
    pub(crate) async fn close(&self, now: Timestamp) {
        self.node.close(now).await;
    }

    /// Figures about the leases of this node. The time is taken from the clock, or is `now` if a trace is replayed.
    pub fn report(&self, now: Timestamp) -> LeaseReport {
        let now = self.node.local_time(now);
        let mut report = self.node.events.report();
        for index in 0..self.node.table.len() {
            let Some(mut shard) = self.node.table.lock(index) else { continue };
            for units in shard.iter_mut().map(|slot| slot.block.units(now)).filter(|units| *units > 0) {
                report.counters += 1;
                report.units = report.units.saturating_add(units);
            }
        }
        report
    }

    /// Asks Redis before the next decision on the counter with this central name: another node has reset or overridden it. Until
    /// this node has released its units, they count for all nodes.
    pub(crate) fn invalidate(&self, name: &[u8]) {
        let now = self.node.local_time(Timestamp::ZERO);
        for index in 0..self.node.table.len() {
            let Some(mut shard) = self.node.table.lock(index) else { continue };
            let mut release = None;
            shard.change_named(name, |slot| release = self.node.forget(slot, now));
            drop(shard);
            if let Some(release) = release {
                self.node.send(release, now);
            }
        }
    }

    /// Stops spending all leases: Redis has lost writes, and may grant the same units again.
    pub(crate) fn invalidate_all(&self) {
        self.forget_where(|_| true);
    }

    /// Asks Redis before the next rejection of any counter: another node may have reset or overridden it.
    pub(crate) fn invalidate_rejections(&self) {
        let now = self.node.local_time(Timestamp::ZERO);
        self.forget_where(|block| block.may_reject(now));
    }

    fn forget_where(&self, is_outdated: impl Fn(&LeaseBlock) -> bool) {
        for index in 0..self.node.table.len() {
            let Some(mut shard) = self.node.table.lock(index) else { continue };
            for slot in shard.iter_mut().filter(|slot| is_outdated(&slot.block)) {
                slot.block.forget();
                slot.waiters.clear();
            }
        }
    }

    /// Asks Redis before the next rejection of the counter with this central name: another node has given units back.
    pub(crate) fn end_rejection(&self, name: &[u8]) {
        for index in 0..self.node.table.len() {
            let Some(mut shard) = self.node.table.lock(index) else { continue };
            shard.change_named(name, |slot| slot.block.end_rejection());
        }
    }

    /// Reports what this node has spent of the counter with this central name: another node has to refund some of it.
    pub(crate) fn report_spent(&self, name: &[u8]) {
        let now = self.node.local_time(Timestamp::ZERO);
        for index in 0..self.node.table.len() {
            let Some(mut shard) = self.node.table.lock(index) else { continue };
            let mut ready = None;
            shard.change_named(name, |slot| {
                if slot.block.has_unreported() {
                    ready = self.node.prepare(slot, ContactReason::Report { cost: 0 }, now);
                }
            });
            drop(shard);
            if let Some(ready) = ready {
                self.node.send(ready, now);
            }
        }
    }

    /// Starts a refund, which happens even if the result is dropped. Units of this node are given back at once.
    pub(crate) fn start_refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> LeaseRefund {
        self.node.start_refund(refunds, now)
    }

    /// Sends a request that changes a counter for all nodes.
    async fn change(&self, request: LeaseRequest, now: Timestamp) -> Result<(), StoreError> {
        let replies = self.node.call(vec![request], now).await?;
        let failure = replies.first().and_then(|reply| ContactFailure::of_status(reply.status));
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// Sets an override again, in case Redis has lost it. Leases stay: they were granted under it, or end soon.
    pub(crate) async fn restore_override(
        &self,
        key: CounterKey<'_>,
        Override { limit, until }: Override,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let action = LeaseAction::RestoreOverride { until };
        self.change(LeaseRequest { limit: Some(limit), ..self.node.bare_request(key, action) }, now).await
    }

    /// Forgets a counter that this node has changed, and releases its units before anyone looks at it.
    async fn forget(&self, key: CounterKey<'_>, now: Timestamp) {
        let hash = self.node.table.hash(key);
        let release = self.node.table.lock(LeaseTable::shard_index(hash)).and_then(|mut shard| {
            let slot = shard.find(hash, key)?;
            self.node.forget(slot, now)
        });
        if let Some(release) = release {
            self.node.exchange_all(vec![release], now).await;
        }
    }
}

impl Store for LeaseStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        match self.try_decide(checks, now) {
            Some(decided) => decided,
            None => self.node.decide_all(checks, now).await,
        }
    }

    /// Decides a single check without Redis, if the node has the units.
    #[inline]
    fn try_decide(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        let [check] = checks else { return None };
        self.node.decide_one(check, now).map(Ok)
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        // All missing leases are requested at once; the decisions then wait for all of them together.
        for checks in batch {
            self.node.try_decide(checks, now, decide::Effort::Request)?;
        }
        decide_in_order(self, batch, now, decisions).await
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let local = self.node.local_time(now);
        let mut blocks = SmallVec::new();
        let mut at = Timestamp::ZERO;
        for check in checks {
            let mut block = self.node.snapshot(check, local).await?;
            at = at.max(block.store_time(self.node.local_time(now)));
            blocks.push(block);
        }
        Ok(peek(checks, at, &PeekLedger { blocks, now: local }))
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        match self.start_refund(refunds, now) {
            LeaseRefund::Local(contained) => Ok(contained),
            LeaseRefund::Remote(result) => result.await.unwrap_or_else(|_| Err(LinkError::Stopped.into())),
        }
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        let request = self.node.bare_request(key, LeaseAction::Reset);
        let now = self.node.local_time(Timestamp::ZERO);
        let result = self.change(request, now).await;
        self.forget(key, now).await;
        result
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let until = replacement.map_or(Timestamp::ZERO, |replacement| replacement.until);
        let limit = replacement.map(|replacement| replacement.limit);
        let request = LeaseRequest { limit, ..self.node.bare_request(key, LeaseAction::Override { until }) };
        let result = self.change(request, now).await;
        self.forget(key, self.node.local_time(now)).await;
        result
    }
}
