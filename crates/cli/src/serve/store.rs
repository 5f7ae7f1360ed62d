//! The store that the policy selects.

use tidegate_core::{Check, CounterKey, Decision, Limit, Refund, Timestamp};
use tidegate_policy::StorePlan;
use tidegate_store::{HeavyKey, MemoryStore, MemoryUse, Override, RetainedLimits, Store, StoreError};

/// The store for counters. The rest of the process is generic over the store.
#[derive(Debug)]
pub(crate) enum SelectedStore {
    /// In the memory of this process.
    Memory(MemoryStore),
}

impl SelectedStore {
    /// Creates the store that `plan` configures.
    pub(crate) fn new(plan: &StorePlan) -> Self {
        let bytes = usize::try_from(plan.max_memory).unwrap_or(usize::MAX);
        Self::Memory(MemoryStore::with_cap(bytes))
    }

    /// The clients with the most requests under each rule, as counted by this process.
    pub(crate) fn heaviest(&self) -> Vec<HeavyKey> {
        match self {
            Self::Memory(store) => store.heaviest(),
        }
    }

    /// The memory that counters use in this process.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        match self {
            Self::Memory(store) => store.memory_use(),
        }
    }
}

impl Store for SelectedStore {
    #[inline]
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.decide(checks, now).await,
        }
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.decide_batch(batch, now, decisions).await,
        }
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.peek(checks, now).await,
        }
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.refund(refunds, now).await,
        }
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.reset(key).await,
        }
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.override_limit(key, replacement, now).await,
        }
    }

    fn retain_limits(&self, limits: &[Limit], now: Timestamp) -> Result<RetainedLimits, StoreError> {
        match self {
            Self::Memory(store) => store.retain_limits(limits, now),
        }
    }
}
