//! Counters about the store itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts rare events; the fast path counts nothing.
#[derive(Debug, Default)]
pub(super) struct StoreMetrics {
    overflowed: AtomicU64,
}

impl StoreMetrics {
    /// Counts a check decided by a shared counter.
    pub(super) fn overflowed(&self) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn overflows(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }
}
