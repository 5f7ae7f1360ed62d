//! The modes that are not written yet: leases and synced counts ask Redis, shares are whole limits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::{Check, Cost, CounterKey, Decision, Limit, Refund, RuleId, Timestamp};
use tidegate_store::{MemoryStore, Override, Store, StoreError};

use crate::central::CentralStore;
use crate::link::Link;
use crate::nodes::NodeCount;

macro_rules! stand_in {
    ($name:ident, $inner:ty, |$link:ident| $new:expr, |$self:ident, $checks:ident, $now:ident, $decision:ident| $after:expr) => {
        impl Store for $name {
            async fn decide(&$self, $checks: &[Check<'_>], $now: Timestamp) -> Result<Decision, StoreError> {
                let $decision = $self.inner.decide($checks, $now).await?;
                $after;
                Ok($decision)
            }

            async fn decide_batch(
                &self,
                batch: &[&[Check<'_>]],
                now: Timestamp,
                decisions: &mut Vec<Decision>,
            ) -> Result<(), StoreError> {
                self.inner.decide_batch(batch, now, decisions).await
            }

            async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
                self.inner.peek(checks, now).await
            }

            async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
                self.inner.refund(refunds, now).await
            }

            async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
                self.inner.reset(key).await
            }

            async fn override_limit(
                &self,
                key: CounterKey<'_>,
                replacement: Option<Override>,
                now: Timestamp,
            ) -> Result<(), StoreError> {
                self.inner.override_limit(key, replacement, now).await
            }
        }

        impl $name {
            pub(crate) fn new($link: Arc<Link>, _nodes: Arc<NodeCount>) -> Self {
                $new
            }

            pub(crate) fn invalidate(&self, name: &[u8]) {
                let _ = (&self.inner, name);
            }
        }
    };
}

#[derive(Debug)]
pub(crate) struct SyncStore {
    inner: CentralStore,
}
stand_in!(
    SyncStore,
    CentralStore,
    |link| Self { inner: CentralStore::with_link(link) },
    |self, checks, now, d| ()
);

#[derive(Debug)]
pub(crate) struct StaticStore {
    inner: MemoryStore,
}
stand_in!(
    StaticStore,
    MemoryStore,
    |link| Self { inner: MemoryStore::with_cap(link.config().max_memory) },
    |self, checks, now, d| ()
);

#[derive(Debug)]
pub(crate) struct FallbackStore {
    inner: MemoryStore,
    admitted: Mutex<HashMap<(RuleId, Vec<u8>), FallbackCharge>>,
}
stand_in!(
    FallbackStore,
    MemoryStore,
    |link| Self { inner: MemoryStore::with_cap(link.config().max_memory), admitted: Mutex::default() },
    |self, checks, now, decision| self.remember(checks, &decision)
);

#[derive(Clone, Debug)]
pub(crate) struct FallbackCharge {
    pub(crate) rule: RuleId,
    pub(crate) client: Box<[u8]>,
    pub(crate) limit: Limit,
    pub(crate) cost: Cost,
}

impl FallbackCharge {
    pub(crate) fn key(&self) -> CounterKey<'_> {
        CounterKey::new(self.rule, &self.client)
    }
}

impl FallbackStore {
    pub(crate) fn begin(&self) {
        let _ = &self.admitted;
    }

    pub(crate) fn drain(&self, _now: Timestamp) -> Vec<FallbackCharge> {
        let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        admitted.drain().map(|(_, charge)| charge).collect()
    }

    fn remember(&self, checks: &[Check<'_>], decision: &Decision) {
        let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        for refund in decision.refunds(checks) {
            let key = (refund.key.rule, refund.key.client.to_vec());
            let charge = admitted.entry(key).or_insert_with(|| FallbackCharge {
                rule: refund.key.rule,
                client: refund.key.client.into(),
                limit: *refund.limit,
                cost: Cost::ZERO,
            });
            charge.cost = charge.cost.plus(refund.cost);
        }
    }
}
