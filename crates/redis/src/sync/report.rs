//! Figures of the exchanges.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counter::ExchangeFindings;

/// The figures of a [`SyncStore`](super::SyncStore) since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Counters of which this node keeps a copy.
    pub counters: u64,
    /// Exchanges that succeeded.
    pub exchanges: u64,
    /// Exchanges that failed.
    pub failed_exchanges: u64,
    /// The most units that this node admitted for a counter between two exchanges.
    pub largest_interval_units: u64,
    /// The most units by which all nodes together can exceed a limit, if no node admits more between two exchanges than this one:
    /// `(nodes - 1) * largest_interval_units`.
    pub overshoot_bound: u64,
    /// The largest number of units beyond a limit that an exchange found. For a token bucket it may include what drained
    /// during an interval. Units charged beyond the limit on purpose (overage) count too.
    pub largest_overshoot: u64,
    /// All units beyond limits that this node's changes added.
    pub total_overshoot: u64,
}

/// Counts exchanges.
#[derive(Debug, Default)]
pub(super) struct SyncMetrics {
    exchanges: AtomicU64,
    failed_exchanges: AtomicU64,
    largest_interval_units: AtomicU64,
    largest_overshoot: AtomicU64,
    total_overshoot: AtomicU64,
}

impl SyncMetrics {
    pub(super) fn count_exchange(&self, succeeded: bool) {
        let counter = if succeeded { &self.exchanges } else { &self.failed_exchanges };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note(&self, findings: ExchangeFindings) {
        self.largest_interval_units.fetch_max(findings.units, Ordering::Relaxed);
        self.largest_overshoot.fetch_max(findings.excess, Ordering::Relaxed);
        self.total_overshoot.fetch_add(findings.added_excess, Ordering::Relaxed);
    }

    pub(super) fn report(&self, counters: usize, nodes: NonZeroU32) -> SyncReport {
        let largest = self.largest_interval_units.load(Ordering::Relaxed);
        SyncReport {
            counters: counters as u64,
            exchanges: self.exchanges.load(Ordering::Relaxed),
            failed_exchanges: self.failed_exchanges.load(Ordering::Relaxed),
            largest_interval_units: largest,
            overshoot_bound: largest.saturating_mul(u64::from(nodes.get()) - 1),
            largest_overshoot: self.largest_overshoot.load(Ordering::Relaxed),
            total_overshoot: self.total_overshoot.load(Ordering::Relaxed),
        }
    }
}
