//! One interface of the stores that decide for a node.

use futures_util::future::BoxFuture;
use tidegate_core::{Check, CounterKey, Decision, Outcomes, Refund, Timestamp};
use tidegate_store::{Override, Store, StoreError};

use super::StoreState;
use super::groups::{Decider, unlimited};

type BoxDecision<'f> = BoxFuture<'f, Result<Decision, StoreError>>;
type BoxRefund<'f> = BoxFuture<'f, Result<bool, StoreError>>;
type BoxChange<'f> = BoxFuture<'f, Result<(), StoreError>>;

/// A [`Store`] whose type is known at run time only. Its futures are boxed, because those of [`Store`] have no common type.
pub(super) trait BoxedStore: Sync {
    fn try_decide(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>>;

    fn decide<'f>(&'f self, checks: &'f [Check<'f>], now: Timestamp) -> BoxDecision<'f>;

    fn decide_batch<'f>(
        &'f self,
        batch: &'f [&'f [Check<'f>]],
        now: Timestamp,
        decisions: &'f mut Vec<Decision>,
    ) -> BoxChange<'f>;

    fn peek<'f>(&'f self, checks: &'f [Check<'f>], now: Timestamp) -> BoxDecision<'f>;

    fn refund<'f>(&'f self, refunds: &'f [Refund<'f>], now: Timestamp) -> BoxRefund<'f>;

    fn reset<'f>(&'f self, key: CounterKey<'f>) -> BoxChange<'f>;

    fn override_limit<'f>(
        &'f self,
        key: CounterKey<'f>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> BoxChange<'f>;
}

impl<S: Store> BoxedStore for S {
    fn try_decide(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        Store::try_decide(self, checks, now)
    }

    fn decide<'f>(&'f self, checks: &'f [Check<'f>], now: Timestamp) -> BoxDecision<'f> {
        Box::pin(Store::decide(self, checks, now))
    }

    fn decide_batch<'f>(
        &'f self,
        batch: &'f [&'f [Check<'f>]],
        now: Timestamp,
        decisions: &'f mut Vec<Decision>,
    ) -> BoxChange<'f> {
        Box::pin(Store::decide_batch(self, batch, now, decisions))
    }

    fn peek<'f>(&'f self, checks: &'f [Check<'f>], now: Timestamp) -> BoxDecision<'f> {
        Box::pin(Store::peek(self, checks, now))
    }

    fn refund<'f>(&'f self, refunds: &'f [Refund<'f>], now: Timestamp) -> BoxRefund<'f> {
        Box::pin(Store::refund(self, refunds, now))
    }

    fn reset<'f>(&'f self, key: CounterKey<'f>) -> BoxChange<'f> {
        Box::pin(Store::reset(self, key))
    }

    fn override_limit<'f>(
        &'f self,
        key: CounterKey<'f>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> BoxChange<'f> {
        Box::pin(Store::override_limit(self, key, replacement, now))
    }
}

/// Admits everything and counts nothing, so that there is nothing to refund.
struct UnlimitedStore;

impl UnlimitedStore {
    fn pass(checks: &[Check<'_>], now: Timestamp) -> Decision {
        let outcomes: Outcomes = checks.iter().map(unlimited).collect();
        Decision::new(now, checks, outcomes).with_charge_times(checks.iter().map(|_| None))
    }
}

impl Store for UnlimitedStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        Ok(Self::pass(checks, now))
    }

    fn try_decide(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        Some(Ok(Self::pass(checks, now)))
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        Ok(Self::pass(checks, now))
    }

    async fn refund(&self, _: &[Refund<'_>], _: Timestamp) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn reset(&self, _: CounterKey<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn override_limit(
        &self,
        _: CounterKey<'_>,
        _: Option<Override>,
        _: Timestamp,
    ) -> Result<(), StoreError> {
        Ok(())
    }
}

impl StoreState {
    /// The store that decides for `decider`.
    pub(super) fn store_of(&self, decider: Decider) -> &dyn BoxedStore {
        match decider {
            Decider::Static => &self.static_share,
            Decider::Sync => &self.sync,
            Decider::Lease => &self.lease,
            Decider::Central => &self.central,
            Decider::Fallback => &self.fallback,
            Decider::Nothing => &UnlimitedStore,
        }
    }
}
