//! Counters without contention.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// A number that only grows. Each core has its own, so there is no contention.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Creates one value for each core. Each value has its own cache line, so that cores do not share one.
pub(crate) fn per_core<T: Default>(cores: usize) -> Box<[CachePadded<T>]> {
    (0..cores.max(1)).map(|_| CachePadded::default()).collect()
}
