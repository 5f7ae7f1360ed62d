//! Figures about leases.

use std::sync::atomic::{AtomicU64, Ordering};

/// Figures about the leases of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// Counters with units to spend.
    pub counters: u64,
    /// The units that can be spent without Redis.
    pub units: u64,
    /// Blocks granted since the start.
    pub grants: u64,
    /// The units in these blocks.
    pub granted_units: u64,
    /// Settlements since the start: periodic reports that renew and release leases.
    pub settlements: u64,
    /// Requests without a grant since the start: the limit was reached.
    pub rejections: u64,
    /// Leases that expired before they were settled, since the start.
    pub expired: u64,
    /// Requests that failed since the start.
    pub failures: u64,
}

/// Counts events.
#[derive(Debug, Default)]
pub(super) struct LeaseEvents {
    pub(super) grants: AtomicU64,
    pub(super) granted_units: AtomicU64,
    pub(super) settlements: AtomicU64,
    pub(super) rejections: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) failures: AtomicU64,
}

/// Adds to a counter of events.
pub(super) fn count(counter: &AtomicU64, events: u64) {
    counter.fetch_add(events, Ordering::Relaxed);
}

impl LeaseEvents {
    /// The events so far.
    pub(super) fn report(&self) -> LeaseReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LeaseReport {
            counters: 0,
            units: 0,
            grants: read(&self.grants),
            granted_units: read(&self.granted_units),
            settlements: read(&self.settlements),
            rejections: read(&self.rejections),
            expired: read(&self.expired),
            failures: read(&self.failures),
        }
    }
}
