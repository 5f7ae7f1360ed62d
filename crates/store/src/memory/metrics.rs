//! What the store tells of itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what happens rarely; the ordinary way counts nothing.
#[derive(Debug, Default)]
pub(super) struct StoreMetrics {
    overflowed: AtomicU64,
}

impl StoreMetrics {
    /// A check was judged by a counter that its key shares with others.
    pub(super) fn overflowed(&self) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn overflows(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }
}
