//! The exchange of counts with Redis.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate_core::{Check, CounterDelta, CounterState, Limit, Timestamp};
use tidegate_store::StoreError;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use super::table::SyncPlace;
use super::{SyncNode, SyncTimes};
use crate::key::KeyName;
use crate::nodes::NodeId;
use crate::operation::{Operation, OperationReply};

/// The most counters per call: more would delay other clients of the server.
const MAX_COUNTERS_PER_CALL: usize = 256;

/// The changes of one node's copy of a counter, to be merged into the counter in Redis.
#[derive(Clone, Debug)]
pub(crate) struct CounterExchange {
    pub(crate) key: KeyName,
    /// The limit under which the changes were counted.
    pub(crate) limit: Limit,
    pub(crate) node: NodeId,
    /// The number of the exchange, increasing per node; 0 if there are no changes.
    pub(crate) number: u64,
    /// The epoch of the changes.
    pub(crate) epoch: u64,
    pub(crate) delta: CounterDelta,
}

/// The reply to an exchange.
#[derive(Clone, Debug)]
pub(crate) enum ExchangeReply {
    /// The counter.
    Counter(ExchangedCounter),
    /// The entry was written by a newer version and left alone.
    NewerFormat,
}

/// A counter in Redis, before and after the node's changes.
#[derive(Clone, Debug)]
pub(crate) struct ExchangedCounter {
    pub(crate) epoch: u64,
    pub(crate) before: CounterState,
    pub(crate) after: CounterState,
}

/// An exchange and the copy it belongs to.
struct OpenExchange {
    place: SyncPlace,
    ticket: u64,
    exchange: CounterExchange,
}

impl SyncNode {
    /// Pushes all changes since the last exchange and pulls the counters. Exchanges of a node do not overlap.
    pub(super) async fn exchange(&self, now: Timestamp) -> Result<(), StoreError> {
        let _turn = self.turn.lock().await;
        self.exchange_now(now).await
    }

    /// Like [`exchange`](Self::exchange); the caller holds `turn`.
    pub(super) async fn exchange_now(&self, now: Timestamp) -> Result<(), StoreError> {
        let local = self.clock.local(now);
        self.clock.note_attempt(local);
        let first = self.next_ticket();
        let open = self.start_exchanges(now);
        let has_repeated = open.iter().any(|open| open.ticket < first);
        let mut exchanged = self.exchange_all(open, local, now).await;
        if has_repeated && exchanged.is_ok() {
            // Changes made since the unconfirmed ones were sent have waited for them.
            exchanged = self.exchange_all(self.start_exchanges(now), local, now).await;
        }
        self.metrics.count_exchange(exchanged.is_ok());
        self.is_refused.store(matches!(exchanged, Err(StoreError::Protocol { .. })), Ordering::Relaxed);
        exchanged
    }

    /// Renews the copies of `checks` that are new or have not been exchanged for a while: without this, a node that restarts or
    /// sees a client rarely would decide on what it last knew.
    pub(super) async fn renew(
        &self,
        checks: &[Check<'_>],
        times: SyncTimes,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let open = self.start_renewals(checks, times)?;
        if open.is_empty() { Ok(()) } else { self.exchange_all(open, times.local, now).await }
    }

    fn start_renewals(
        &self,
        checks: &[Check<'_>],
        SyncTimes { local, shared: now }: SyncTimes,
    ) -> Result<Vec<OpenExchange>, StoreError> {
        let limits = self.limits(checks, now)?;
        let (mut open, mut table) = (Vec::new(), self.table.lock(checks));
        for (position, (check, limit)) in checks.iter().zip(&limits).enumerate() {
            let counter = self.copy_of(&mut table, position, check, limit, now)?;
            if counter.is_outdated(local, self.max_age, self.period) {
                counter.touch(local);
                counter.adopt(limit, now);
                let (ticket, exchange) = counter.start_exchange(self.id, self.next_ticket());
                open.push(OpenExchange { place: self.table.place(check.key), ticket, exchange });
            }
        }
        Ok(open)
    }

    fn start_exchanges(&self, now: Timestamp) -> Vec<OpenExchange> {
        let (mut open, local) = (Vec::new(), self.clock.local(now));
        self.table.visit_all(self.clock.store_time(now), |place, counter| {
            if counter.joins_exchange(local, self.max_age) {
                let (ticket, exchange) = counter.start_exchange(self.id, self.next_ticket());
                open.push(OpenExchange { place, ticket, exchange });
            }
        });
        open
    }

    /// Sends `open` in calls of limited size. An exchange that fails stays open, and is sent again next time. Returns the first
    /// error.
    async fn exchange_all(
        &self,
        open: Vec<OpenExchange>,
        local: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if open.is_empty() {
            return self.exchange_group(&[], local, now).await;
        }
        let mut exchanged = Ok(());
        for chunk in open.chunks(MAX_COUNTERS_PER_CALL) {
            // A call that fails says nothing about the counters of the others.
            exchanged = exchanged.and(self.exchange_chunk(chunk, local, now).await);
        }
        exchanged
    }

    async fn exchange_chunk(
        &self,
        chunk: &[OpenExchange],
        local: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if !self.link.has_slots() {
            let group: Vec<&OpenExchange> = chunk.iter().collect();
            return self.exchange_group(&group, local, now).await;
        }
        let mut slots = BTreeMap::<u16, Vec<&OpenExchange>>::new();
        for open in chunk {
            slots.entry(open.exchange.key.slot()).or_default().push(open);
        }
        let groups = slots.values().map(|group| self.exchange_group(group, local, now));
        join_all(groups).await.into_iter().collect()
    }

    async fn exchange_group(
        &self,
        group: &[&OpenExchange],
        local: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let counters = group.iter().map(|open| open.exchange.clone()).collect();
        let reply = self.link.call(Operation::Exchange(counters), now).await?;
        let OperationReply::Exchanged(at, replies) = reply else {
            return Err(StoreError::Protocol { reason: "no counters in the reply".to_owned() });
        };
        self.clock.note_exchange(local, at, self.clock.local(now));
        for (open, reply) in group.iter().zip(replies) {
            let is_it = |counter: &super::counter::SyncCounter| counter.awaits(open.ticket);
            let findings = self
                .table
                .change_where(open.place, is_it, |counter| counter.finish_exchange(reply, at, local));
            self.metrics.note(findings.unwrap_or_default());
        }
        Ok(())
    }
}

/// Exchanges once in each `period`, and at once when notified, until the node is dropped.
pub(super) async fn run(node: Weak<SyncNode>, wake: Arc<Notify>, period: Duration) {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = wake.notified() => {}
        }
        match node.upgrade() {
            // An error is counted; decisions report it when the copies are too old.
            Some(node) => drop(node.exchange(Timestamp::ZERO).await),
            None => return,
        }
    }
}
