//! The nodes that share the limits.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of live nodes, as this node knows it.
#[derive(Debug)]
pub(crate) struct NodeCount(AtomicU32);

impl NodeCount {
    /// Before any node is known: the configured number.
    pub(crate) fn new(configured: NonZeroU32) -> Self {
        Self(AtomicU32::new(configured.get()))
    }

    /// The number of live nodes, at least 1.
    pub(crate) fn get(&self) -> NonZeroU32 {
        NonZeroU32::new(self.0.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// Sets the number of live nodes.
    pub(crate) fn set(&self, count: NonZeroU32) {
        self.0.store(count.get(), Ordering::Relaxed);
    }
}

/// The identity of a node: a random number, new at each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub(crate) u64);

impl NodeId {
    /// A new identity.
    pub(crate) fn random() -> Self {
        Self(fastrand::u64(1..1 << 53))
    }
}
