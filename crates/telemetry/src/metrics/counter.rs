//! Counters that nobody waits for.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// A number that only grows. Each core has its own, so adding to it is never contended.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// So many values, one for each core, on cache lines of their own: two cores never write to the same.
pub(crate) fn for_each_core<T: Default>(cores: usize) -> Box<[CachePadded<T>]> {
    (0..cores.max(1)).map(|_| CachePadded::default()).collect()
}
