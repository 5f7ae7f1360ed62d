//! Counters without a shared store: each node enforces its part of every limit.

use std::num::NonZeroU32;

use smallvec::SmallVec;
use tidegate_core::{Check, CounterKey, Decision, Limit, Refund, Timestamp};
use tidegate_store::{MemoryStore, Override, RetainedLimits, Store, StoreError};

use crate::config::RedisConfig;
use crate::share_table::{NodeShare, ShareTable, with_limits};

/// Each node enforces the limit divided by the number of nodes. Clients see the part as their limit. Nothing is admitted too
/// much while the number is right; what a node does not use is lost.
#[derive(Debug)]
pub struct StaticStore {
    memory: MemoryStore,
    shares: ShareTable,
    share: NodeShare,
}

impl StaticStore {
    /// A store for one of the configured number of nodes.
    pub fn new(config: &RedisConfig) -> Self {
        Self::with_nodes(config.nodes, config.max_memory)
    }

    /// A store for one of `nodes`, whose counters take at most `max_memory` bytes.
    pub fn with_nodes(nodes: NonZeroU32, max_memory: usize) -> Self {
        Self {
            memory: MemoryStore::with_cap(max_memory),
            shares: ShareTable::default(),
            share: NodeShare { part: 1, of: nodes.get().into() },
        }
    }

    fn share(&self, limit: &Limit) -> Limit {
        self.shares.share(limit, self.share)
    }

    fn limits(&self, checks: &[Check<'_>]) -> SmallVec<[Limit; 4]> {
        checks.iter().map(|check| self.share(check.limit)).collect()
    }
}

impl Store for StaticStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let limits = self.limits(checks);
        self.memory.decide(&with_limits(checks, &limits, |key| key), now).await
    }

    fn try_decide(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        let limits = self.limits(checks);
        self.memory.try_decide(&with_limits(checks, &limits, |key| key), now)
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let limits: Vec<_> = batch.iter().map(|checks| self.limits(checks)).collect();
        let checks: Vec<_> = batch
            .iter()
            .zip(&limits)
            .map(|(checks, limits)| with_limits(checks, limits, |key| key))
            .collect();
        let batch: Vec<&[Check<'_>]> = checks.iter().map(SmallVec::as_slice).collect();
        self.memory.decide_batch(&batch, now, decisions).await
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let limits = self.limits(checks);
        self.memory.peek(&with_limits(checks, &limits, |key| key), now).await
    }

    fn try_peek(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        let limits = self.limits(checks);
        self.memory.try_peek(&with_limits(checks, &limits, |key| key), now)
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        let mut contained = false;
        for refund in refunds {
            let limit = self.share(refund.limit);
            contained |= self.memory.refund(&[Refund { limit: &limit, ..*refund }], now).await?;
        }
        Ok(contained)
    }

    fn try_refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Option<Result<bool, StoreError>> {
        let refund = |refund: &Refund<'_>| {
            let limit = self.share(refund.limit);
            self.memory.try_refund(&[Refund { limit: &limit, ..*refund }], now)
        };
        let refunded: Option<Result<Vec<_>, _>> = refunds.iter().map(refund).collect();
        refunded.map(|contained| contained.map(|contained| contained.contains(&true)))
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.memory.reset(key).await
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let replacement = replacement.map(|whole| Override { limit: self.share(&whole.limit), ..whole });
        self.memory.override_limit(key, replacement, now).await
    }

    fn retain_limits(&self, limits: &[Limit], now: Timestamp) -> Result<RetainedLimits, StoreError> {
        let shares: Vec<Limit> = limits.iter().map(|limit| self.share(limit)).collect();
        self.memory.retain_limits(&shares, now)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Cost, RuleId, Spec, TimeSpan};

    use super::*;

    const RULE: RuleId = RuleId::named("default");

    fn store(nodes: u32) -> StaticStore {
        StaticStore::with_nodes(NonZeroU32::new(nodes).unwrap(), 1 << 20)
    }

    #[tokio::test]
    async fn static_nodes_together_admit_at_most_the_limit() {
        let now = Timestamp::from_secs(1_700_000_000);
        for algorithm in Algorithm::ALL {
            let max_wait = (*algorithm == Algorithm::LeakyBucket).then_some(TimeSpan::MAX);
            let spec = Spec { max_wait, ..Spec::new(100, TimeSpan::from_secs(60)) };
            let limit = Limit::new(*algorithm, spec).unwrap();
            let stores = [store(3), store(3), store(3)];
            let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
            let mut admitted = 0;
            for number in 0..300 {
                let decision = stores[number % 3].decide(&[check], now).await.unwrap();
                admitted += u32::from(decision.passes());
                assert_eq!(decision.outcomes[0].limit, 33);
            }
            assert_eq!(admitted, 99, "{algorithm}");
        }
    }

    #[tokio::test]
    async fn static_store_refunds_resets_and_overrides_its_part() {
        let now = Timestamp::from_secs(1_700_000_000);
        let limit = Limit::new(Algorithm::FixedWindow, Spec::new(20, TimeSpan::from_secs(60))).unwrap();
        let (store, key) = (store(2), CounterKey::new(RULE, b"client"));
        let check = Check::new(key, &limit).cost(Cost::new(10));
        let decision = store.decide(&[check], now).await.unwrap();
        assert!(decision.passes());
        assert_eq!(store.peek(&[check], now).await.unwrap().outcomes[0].remaining, 0);
        store.refund(&decision.refunds(&[check]), now).await.unwrap();
        let mut decisions = Vec::new();
        store.decide_batch(&[&[check], &[check]], now, &mut decisions).await.unwrap();
        assert_eq!(decisions.iter().map(Decision::passes).collect::<Vec<_>>(), [true, false]);
        let twice = Limit::new(Algorithm::FixedWindow, Spec::new(40, TimeSpan::from_secs(60))).unwrap();
        let replacement = Override { limit: twice, until: now + TimeSpan::from_secs(60) };
        store.override_limit(key, Some(replacement), now).await.unwrap();
        assert!(store.decide(&[check], now).await.unwrap().passes());
        assert!(!store.decide(&[check], now).await.unwrap().passes());
        store.reset(key).await.unwrap();
        assert_eq!(store.peek(&[check], now).await.unwrap().outcomes[0].remaining, 20);
    }
}
