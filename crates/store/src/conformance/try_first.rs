//! A store whose operations are tried without a wait before they are awaited.

use tidegate_core::{Check, Decision, Refund, Timestamp};

use crate::store::{Store, StoreError};

/// Tries every second operation, so that the others are awaited at once.
pub(super) struct TryFirst<'s, S> {
    pub(super) store: &'s S,
    operations: u64,
    /// Operations that were tried.
    pub(super) tried: u64,
    /// Those of them that had to be awaited.
    pub(super) awaited: u64,
}

impl<'s, S: Store> TryFirst<'s, S> {
    pub(super) fn new(store: &'s S) -> Self {
        Self { store, operations: 0, tried: 0, awaited: 0 }
    }

    /// The result of `operation`, if it is its turn to be tried and it needs no wait.
    fn attempt<T>(&mut self, operation: impl FnOnce(&S) -> Option<T>) -> Option<T> {
        self.operations += 1;
        if self.operations.is_multiple_of(2) {
            return None;
        }
        let result = operation(self.store);
        self.tried += 1;
        self.awaited += u64::from(result.is_none());
        result
    }

    pub(super) async fn decide(
        &mut self,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        match self.attempt(|store| store.try_decide(checks, now)) {
            Some(decided) => decided,
            None => self.store.decide(checks, now).await,
        }
    }

    pub(super) async fn decide_batch(
        &mut self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
    ) -> Result<Vec<Decision>, StoreError> {
        let mut decisions = Vec::new();
        match self.attempt(|store| store.try_decide_batch(batch, now, &mut decisions)) {
            Some(decided) => decided?,
            None => self.store.decide_batch(batch, now, &mut decisions).await?,
        }
        Ok(decisions)
    }

    pub(super) async fn peek(
        &mut self,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        match self.attempt(|store| store.try_peek(checks, now)) {
            Some(peeked) => peeked,
            None => self.store.peek(checks, now).await,
        }
    }

    pub(super) async fn refund(
        &mut self,
        refunds: &[Refund<'_>],
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        match self.attempt(|store| store.try_refund(refunds, now)) {
            Some(refunded) => refunded,
            None => self.store.refund(refunds, now).await,
        }
    }
}
