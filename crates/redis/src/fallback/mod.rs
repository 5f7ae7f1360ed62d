//! Counters for the time in which Redis fails.
//!
//! Each node enforces `fallback_share / live nodes` of every limit, so all nodes together admit at most `fallback_share` of it
//! per window. The counters of earlier outages stay and drain by themselves: several outages in one window share one part of
//! the limit. What was admitted is remembered per counter, so that it can be charged when Redis returns.
//!
//! Time is that of the server, by the offset that was seen last: the windows of all nodes begin at the same moment, and are
//! those in which Redis counts.

mod ledger;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tidegate_core::{Check, Cost, CounterKey, Decision, Limit, OwnedKey, Ratio, Refund, Role, Timestamp};
use tidegate_store::{MemoryStore, Override, Store, StoreError};

use crate::link::Link;
use crate::local_overrides::LocalOverrides;
use crate::nodes::NodeCount;
use crate::share_table::{NodeShare, ShareTable, with_limits};
use ledger::{FallbackCounter, FallbackLedger};

/// Decides while Redis fails.
#[derive(Debug)]
pub(crate) struct FallbackStore {
    link: Arc<Link>,
    nodes: Arc<NodeCount>,
    memory: MemoryStore,
    shares: ShareTable,
    overrides: LocalOverrides,
    ledger: FallbackLedger,
    outages: AtomicU64,
    decisions: AtomicU64,
}

/// Units of a counter that were admitted during an outage and still count.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FallbackCharge {
    key: OwnedKey,
    /// The units to charge.
    pub(crate) cost: Cost,
    counter: FallbackCounter,
}

impl FallbackCharge {
    /// The check that charges the units, even beyond the limit.
    pub(crate) fn check(&self) -> Check<'_> {
        Check::new(self.key.as_key(), &self.counter.whole).cost(self.cost).role(Role::Overage)
    }
}

/// How the shares of limits were used while Redis failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackReport {
    /// Outages since the start.
    pub outages: u64,
    /// Decisions since the start.
    pub decisions: u64,
    /// Counters whose units are to be charged when Redis returns.
    pub counters: u64,
    /// Units that were admitted but not remembered, because too many counters were in use.
    pub unrecorded_units: u64,
}

impl FallbackStore {
    /// A store for one of `nodes`.
    pub(crate) fn new(link: Arc<Link>, nodes: Arc<NodeCount>) -> Self {
        Self {
            memory: MemoryStore::with_cap(link.config().max_memory),
            link,
            nodes,
            shares: ShareTable::default(),
            overrides: LocalOverrides::default(),
            ledger: FallbackLedger::default(),
            outages: AtomicU64::new(0),
            decisions: AtomicU64::new(0),
        }
    }

    /// Counts an outage.
    pub(crate) fn begin(&self) {
        self.outages.fetch_add(1, Ordering::Relaxed);
    }

    /// The server's time at the node's time `node`.
    fn server_time(&self, node: Timestamp) -> Timestamp {
        self.link.server_time().at_server(node)
    }

    /// Whether something was admitted that may have to be charged.
    pub(crate) fn has_charges(&self) -> bool {
        self.ledger.len() > 0
    }

    /// Removes what was admitted for up to `most` counters, and returns the units that still count at the node's time `now`.
    /// Units of windows that are over on the server are not returned. Empty only if nothing is left.
    pub(crate) fn take(&self, most: usize, now: Timestamp) -> Vec<FallbackCharge> {
        self.ledger.take(most, self.server_time(now))
    }

    /// Whether the units of a refund were admitted here, and not by Redis.
    pub(crate) fn has_charged(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        let now = self.server_time(now);
        let limit = self.overrides.limit_of_charge(refund, now);
        limit.is_some_and(|limit| self.ledger.has_charged(&Refund { limit: &limit, ..*refund }, now))
    }

    /// Takes back a charge that was not sent. By the time it can be sent, its window may be over.
    pub(crate) fn put_back(&self, charge: FallbackCharge) {
        self.ledger.put_back(charge);
    }

    /// Forgets what was admitted for the counter with this name in Redis.
    pub(crate) fn invalidate(&self, name: &[u8]) {
        self.ledger.remove_where(|key| self.link.names().counter(key).as_bytes() == name);
    }

    /// All overrides, with their ends in the server's time.
    pub(crate) fn overrides(&self) -> &LocalOverrides {
        &self.overrides
    }

    /// The use of the store.
    pub(crate) fn report(&self) -> FallbackReport {
        FallbackReport {
            outages: self.outages.load(Ordering::Relaxed),
            decisions: self.decisions.load(Ordering::Relaxed),
            counters: self.ledger.len() as u64,
            unrecorded_units: self.ledger.unrecorded(),
        }
    }

    /// The part of every limit that this node enforces.
    fn node_share(&self) -> NodeShare {
        let whole = u64::from(Ratio::ONE.as_millionths());
        let nodes = u64::from(self.nodes.get().get());
        NodeShare { part: self.link.config().fallback_share.as_millionths().into(), of: whole * nodes }
    }

    fn share(&self, limit: &Limit) -> Limit {
        self.shares.share(limit, self.node_share())
    }

    /// The whole limits in force, and the node's parts of them.
    fn limits(&self, checks: &[Check<'_>], now: Timestamp) -> CheckLimits {
        let whole = |check: &Check<'_>| self.overrides.in_force(check.key, check.limit, now);
        let whole: SmallVec<[Limit; 4]> = checks.iter().map(whole).collect();
        let shares = whole.iter().map(|limit| self.share(limit)).collect();
        CheckLimits { whole, shares }
    }

    fn remember(&self, checks: &[Check<'_>], limits: &CheckLimits, decision: &Decision) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        if !decision.passes() {
            return;
        }
        for (position, (check, outcome)) in checks.iter().zip(&decision.outcomes).enumerate() {
            let is_charged = outcome.verdict.is_pass() || check.role == Role::Overage;
            if let (true, Some(whole), Some(share)) = (
                is_charged && check.cost > Cost::ZERO,
                limits.whole.get(position),
                limits.shares.get(position),
            ) {
                self.ledger.charge(check.key, whole, share, decision.at, check.cost);
            }
        }
    }
}

/// The limits of a decision's checks.
struct CheckLimits {
    whole: SmallVec<[Limit; 4]>,
    shares: SmallVec<[Limit; 4]>,
}

impl Store for FallbackStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let now = self.server_time(now);
        let limits = self.limits(checks, now);
        let decision = self.memory.decide(&with_limits(checks, &limits.shares, |key| key), now).await?;
        self.remember(checks, &limits, &decision);
        Ok(decision)
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let now = self.server_time(now);
        let limits = self.limits(checks, now);
        self.memory.peek(&with_limits(checks, &limits.shares, |key| key), now).await
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        let now = self.server_time(now);
        let mut contained = false;
        for refund in refunds {
            let Some(whole) = self.overrides.limit_of_charge(refund, now) else { continue };
            let limit = self.share(&whole);
            let local = Refund { limit: &limit, ..*refund };
            contained |= self.memory.refund(&[local], now).await?;
            self.ledger.refund(&Refund { limit: &whole, ..*refund }, now);
        }
        Ok(contained)
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.ledger.remove(key);
        self.memory.reset(key).await
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.overrides.set(key, replacement, self.server_time(now));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
