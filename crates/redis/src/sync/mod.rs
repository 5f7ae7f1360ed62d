//! Counts that nodes exchange at an interval.
//!
//! A node keeps a copy of each counter it uses: the counter as of its last exchange with Redis, plus the node's own charges since.
//! It decides on the copy without asking. Twice in every `sync_interval` it pushes the changes of all copies in use and pulls the
//! counters. Between two exchanges a node therefore spends at most the units that it last saw.
//!
//! # Bound
//!
//! All nodes together exceed a limit by at most `(nodes - 1) *` the units that one node admits between two exchanges. Proof: for
//! each node, take the last exchange before its last admission, and let `k` be the node whose exchange is the latest of
//! these. Node `k`'s copy then contained everything that any node pushed in its exchange, and its last admission fitted. Each
//! other node has admitted more only since its exchange. A copy that is new, or that exchanges leave out because it was not used for two
//! intervals and a timeout, is renewed before it decides, so a node that restarts does not forget what it admitted.
//!
//! The excess ends within an interval and the duration of two exchanges after the limit is reached: in the first half of the interval
//! every node pushes what it had admitted by then, and in the second half every node sees that the limit is reached.
//!
//! Two exchanges are half an interval and the duration of an exchange apart. A node whose exchanges fail continues with its copies
//! for at most two intervals and a timeout, so that one failed exchange does not matter; then its decisions fail. So each
//! other node adds at most what it admits in two intervals and a timeout.
//!
//! # Changes arrive once
//!
//! Changes are stamped with their window and with the epoch of the last reset (see [`CounterDelta`](tidegate_core::CounterDelta)), so
//! a late push is never charged to a new window or past a reset. Each carries a number. A push whose result is unknown is
//! repeated unchanged; the script ignores a number that it has seen, so nothing is lost and nothing is charged twice.
//!
//! # Time
//!
//! A node's time is the server's time at the last exchange plus the time elapsed since. If an exchange is overdue, decisions fail
//! with [`StoreError::Unavailable`]; this store does not fall back on its own. Overrides are those of this node: they are
//! set on every node.

mod counter;
mod exchange;
mod report;
mod store_clock;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use thiserror::Error;
use tidegate_core::{
    Check, Coordination, Cost, CounterKey, Decision, Limit, Refund, TimeSpan, Timestamp, decide, peek,
};
use tidegate_store::{Clock, Override, Store, StoreError};
use tokio::sync::{Mutex, Notify};

use crate::config::RedisConfig;
use crate::link::Link;
use crate::local_overrides::LocalOverrides;
use crate::nodes::{NodeCount, NodeId};
use crate::operation::{Operation, OperationReply};
use crate::support::supports;
use counter::SyncCounter;
pub(crate) use exchange::{CounterExchange, ExchangeReply, ExchangedCounter};
use report::SyncMetrics;
pub use report::SyncReport;
use store_clock::StoreClock;
use table::{LockedTable, SyncLedger, SyncTable};

/// How often a node that stops tries to push its changes, and the time between two attempts.
const CLOSE_ATTEMPTS: usize = 8;
const CLOSE_PAUSE: Duration = Duration::from_millis(50);

/// Counters of which every node keeps a copy. Supports `token_bucket`, `fixed_window` and `sliding_window_counter`.
#[derive(Clone, Debug)]
pub struct SyncStore {
    node: Arc<SyncNode>,
}

/// The state of one node.
#[derive(Debug)]
struct SyncNode {
    link: Arc<Link>,
    nodes: Arc<NodeCount>,
    id: NodeId,
    table: SyncTable,
    overrides: LocalOverrides,
    clock: StoreClock,
    metrics: SyncMetrics,
    tickets: AtomicU64,
    /// Held during an exchange.
    turn: Mutex<()>,
    wake: Arc<Notify>,
    /// Whether Redis has replied to the last exchange with an error.
    is_refused: AtomicBool,
    /// The time from one exchange to the next: half of `sync_interval`.
    period: TimeSpan,
    /// Copies that no exchange has covered for longer are not used. The bound of the store depends on it.
    max_age: TimeSpan,
}

/// One moment, on the clock of the node and on the one that all nodes share.
#[derive(Clone, Copy, Debug)]
struct SyncTimes {
    local: Timestamp,
    shared: Timestamp,
}

/// Why a node cannot decide on its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum SyncUnavailable {
    #[error("the last exchange of counts with Redis is too long ago")]
    Overdue,
    #[error("no room for the copy of another counter; increase `store.max_memory`")]
    NoRoom,
}

impl SyncStore {
    /// A store with its own connection, for one of the configured number of nodes.
    pub fn connect(config: RedisConfig, clock: Arc<dyn Clock>) -> Self {
        let nodes = Arc::new(NodeCount::new(config.nodes));
        Self::new(Arc::new(Link::new(config, clock)), nodes)
    }

    /// A store that exchanges counts in the background. With time from the caller, it exchanges them when a decision finds that
    /// an interval has passed.
    pub(crate) fn new(link: Arc<Link>, nodes: Arc<NodeCount>) -> Self {
        let config = link.config();
        let (interval, period) = (config.sync_interval, config.sync_interval / 2);
        let node = Arc::new(SyncNode {
            nodes,
            id: NodeId::random(),
            table: SyncTable::new(config.max_memory),
            overrides: LocalOverrides::default(),
            clock: StoreClock::new(Arc::clone(link.clock()), config.time),
            metrics: SyncMetrics::default(),
            tickets: AtomicU64::new(0),
            turn: Mutex::new(()),
            wake: Arc::new(Notify::new()),
            is_refused: AtomicBool::new(false),
            period: period.into(),
            max_age: TimeSpan::from(interval * 2 + config.timeout),
            link,
        });
        if !node.clock.is_callers() {
            let background = exchange::run(Arc::downgrade(&node), Arc::clone(&node.wake), period);
            node.link.spawn(background);
        }
        Self { node }
    }

    /// Exchanges counts with Redis now. `now` counts only with [`TimeSource::Caller`](crate::TimeSource::Caller).
    pub async fn exchange(&self, now: Timestamp) -> Result<(), StoreError> {
        self.node.exchange(now).await
    }

    /// Pushes the changes that Redis does not know yet. For the end of the process, after the last decision. Gives up if Redis does
    /// not reply.
    pub(crate) async fn close(&self, now: Timestamp) {
        for _ in 0..CLOSE_ATTEMPTS {
            if self.node.table.len() == 0
                || !self.node.link.is_available()
                || self.exchange(now).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(CLOSE_PAUSE).await;
        }
    }

    /// Renews the copy of the counter with this name under central coordination, because another node reset, refunded or overrode
    /// it.
    pub(crate) fn invalidate(&self, name: &[u8]) {
        let (local, mut is_found) = (self.node.clock.local(Timestamp::ZERO), false);
        self.node.table.visit_all(Timestamp::ZERO, |_, counter| {
            if counter.has_central_name(name) {
                counter.touch(local);
                is_found = true;
            }
        });
        if is_found {
            self.node.wake.notify_one();
        }
    }

    /// Figures of the exchanges.
    pub fn report(&self) -> SyncReport {
        self.node.metrics.report(self.node.table.len(), self.node.nodes.get())
    }
}

impl SyncNode {
    fn next_ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Waits for the first exchange, or for one that is due by the caller's time; then checks that the last one is recent. Returns
    /// the node's time and the store's.
    async fn current_time(&self, now: Timestamp) -> Result<SyncTimes, StoreError> {
        let is_first = self.clock.age(self.clock.local(now)).is_none();
        let mut exchanged = Ok(());
        if is_first || self.is_due(now) {
            exchanged = match self.turn.try_lock() {
                Ok(_turn) if self.is_due(now) => self.exchange_now(now).await,
                Err(_) if is_first => {
                    // Another task makes the first exchange.
                    drop(self.turn.lock().await);
                    Ok(())
                }
                _ => Ok(()),
            };
        }
        let local = self.clock.local(now);
        match self.clock.age(local) {
            Some(age) if age <= self.max_age => Ok(SyncTimes { local, shared: self.clock.store_time(now) }),
            _ => Err(exchanged.err().unwrap_or_else(|| self.overdue())),
        }
    }

    /// Whether a decision has to exchange counts: nothing else has, or there is no background task.
    fn is_due(&self, now: Timestamp) -> bool {
        match self.clock.since_attempt(self.clock.local(now)) {
            None => true,
            Some(elapsed) => self.clock.is_callers() && elapsed >= self.period,
        }
    }

    /// The limits in force.
    fn limits(&self, checks: &[Check<'_>], now: Timestamp) -> Result<SmallVec<[Limit; 4]>, StoreError> {
        let limit_of = |check: &Check<'_>| {
            let limit = self.overrides.in_force(check.key, check.limit, now);
            if supports(Coordination::Sync, &limit) {
                Ok(limit)
            } else {
                Err(StoreError::Unsupported { algorithm: limit.algorithm() })
            }
        };
        checks.iter().map(limit_of).collect()
    }

    fn decide_at(
        &self,
        checks: &[Check<'_>],
        SyncTimes { local, shared: now }: SyncTimes,
    ) -> Result<Decision, StoreError> {
        let limits = self.limits(checks, now)?;
        let mut table = self.table.lock(checks);
        for (position, (check, limit)) in checks.iter().zip(&limits).enumerate() {
            let counter = self.copy_of(&mut table, position, check, limit, now)?;
            counter.note_view(local);
            counter.touch(local);
            counter.adopt(limit, now);
        }
        self.check_copies(checks, &table, local)?;
        Ok(decide(checks, now, &mut SyncLedger { table, checks, limits: &limits, now }))
    }

    /// The copy of a check's counter; a new one if there is none.
    fn copy_of<'t>(
        &self,
        table: &'t mut LockedTable<'_>,
        position: usize,
        check: &Check<'_>,
        limit: &Limit,
        now: Timestamp,
    ) -> Result<&'t mut SyncCounter, StoreError> {
        let create =
            || SyncCounter::new(check.key, self.link.names().sync(check.key), limit, self.clock.newest());
        table
            .get_or_insert(position, check.key, now, create)
            .ok_or_else(|| unavailable(SyncUnavailable::NoRoom))
    }

    fn peek_at(
        &self,
        checks: &[Check<'_>],
        SyncTimes { local, shared: now }: SyncTimes,
    ) -> Result<Decision, StoreError> {
        let limits = self.limits(checks, now)?;
        let table = self.table.lock(checks);
        self.check_copies(checks, &table, local)?;
        Ok(peek(checks, now, &SyncLedger { table, checks, limits: &limits, now }))
    }

    /// Checks that every copy can be used.
    fn check_copies(
        &self,
        checks: &[Check<'_>],
        table: &LockedTable<'_>,
        local: Timestamp,
    ) -> Result<(), StoreError> {
        for (position, check) in checks.iter().enumerate() {
            let Some(counter) = table.get(position, check.key) else { continue };
            if counter.is_newer() {
                return Err(newer_format());
            }
            if counter.waiting_since().is_some_and(|since| local.since(since) > self.max_age) {
                return Err(self.overdue());
            }
        }
        Ok(())
    }

    /// Why there was no exchange for too long. A server that replies with errors is not away.
    fn overdue(&self) -> StoreError {
        if self.is_refused.load(Ordering::Relaxed) {
            return StoreError::Protocol { reason: "Redis rejects the exchange of counts".to_owned() };
        }
        unavailable(SyncUnavailable::Overdue)
    }

    /// Refunds charges on the copies of their counters. A counter without a copy is fetched first, because another node, or this
    /// one before its restart, has charged it.
    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        let (local, store_time) = (self.clock.local(now), self.clock.store_time(now));
        let limit = |refund| Some((refund, self.overrides.limit_of_charge(refund, store_time)?));
        let charged: SmallVec<[(&Refund<'_>, Limit); 2]> = refunds.iter().filter_map(limit).collect();
        let refunds: SmallVec<[Refund<'_>; 2]> =
            charged.iter().map(|(refund, limit)| Refund { limit, ..**refund }).collect();
        let is_unknown = refunds.iter().any(|refund| !self.table.has_view(refund.key));
        let checks: SmallVec<[Check<'_>; 2]> =
            refunds.iter().map(|refund| Check::new(refund.key, refund.limit).cost(Cost::ZERO)).collect();
        let fetched = async {
            let times = self.current_time(now).await?;
            self.renew(&checks, times, now).await
        };
        if let Err(error) = fetched.await
            && is_unknown
        {
            return Err(error);
        }
        let store_time = self.clock.store_time(now);
        let mut contained = false;
        for refund in &refunds {
            let change = |counter: &mut SyncCounter| contained |= counter.refund(refund, store_time, local);
            self.table.change(refund.key, change);
        }
        Ok(contained)
    }
}

fn newer_format() -> StoreError {
    StoreError::Protocol { reason: "newer format of a counter".to_owned() }
}

fn unavailable(reason: SyncUnavailable) -> StoreError {
    StoreError::Unavailable(Box::new(reason))
}

impl Store for SyncStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let times = self.node.current_time(now).await?;
        self.node.renew(checks, times, now).await?;
        self.node.decide_at(checks, times)
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let times = self.node.current_time(now).await?;
        self.node.renew(checks, times, now).await?;
        self.node.peek_at(checks, times)
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        self.node.refund(refunds, now).await
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        let name = self.node.link.names().sync(key);
        let now = self.node.clock.newest();
        let OperationReply::Done(epoch) = self.node.link.call(Operation::ResetCopies(name), now).await?
        else {
            return Err(newer_format());
        };
        self.node.table.change(key, |counter| counter.reset(epoch));
        Ok(())
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.node.overrides.set(key, replacement, self.node.clock.store_time(now));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
