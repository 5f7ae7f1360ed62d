//! A store that records what it is to decide, and decides nothing.

use std::sync::Mutex;

use tidegate_core::{Check, Cost, CounterKey, Decision, Refund, Role, RuleId, Timestamp};
use tidegate_policy::ClientName;
use tidegate_store::{Override, Store, StoreError};

/// Records the checks of a request. Its rules are in shadow mode, so that the request is admitted without a decision.
#[derive(Debug, Default)]
pub(super) struct RecordingStore {
    checks: Mutex<Vec<RecordedCheck>>,
}

/// A check without the limit.
#[derive(Debug)]
pub(super) struct RecordedCheck {
    pub(super) rule: RuleId,
    client: String,
    cost: Cost,
    role: Role,
}

impl RecordedCheck {
    /// The check of the rule `name` as text.
    pub(super) fn describe(&self, name: &str) -> String {
        describe(name, &self.client, self.cost.get(), self.role == Role::Binding)
    }
}

/// A check as text.
pub(super) fn describe(rule: &str, client: &str, cost: u64, is_binding: bool) -> String {
    format!("{rule} {client} {cost} {is_binding}")
}

impl RecordingStore {
    /// The checks since the last call.
    pub(super) fn take(&self) -> Vec<RecordedCheck> {
        std::mem::take(&mut *self.checks.lock().unwrap())
    }

    fn record(&self, checks: &[Check<'_>]) -> StoreError {
        self.checks.lock().unwrap().extend(checks.iter().map(|check| RecordedCheck {
            rule: check.key.rule,
            client: ClientName::from_key(check.key.client).to_string(),
            cost: check.cost,
            role: check.role,
        }));
        StoreError::Unavailable("it only records".into())
    }
}

impl Store for RecordingStore {
    async fn decide(&self, checks: &[Check<'_>], _now: Timestamp) -> Result<Decision, StoreError> {
        Err(self.record(checks))
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        _now: Timestamp,
        _decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        Err(self.record(&batch.concat()))
    }

    async fn peek(&self, checks: &[Check<'_>], _now: Timestamp) -> Result<Decision, StoreError> {
        Err(self.record(checks))
    }

    async fn refund(&self, _refunds: &[Refund<'_>], _now: Timestamp) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn reset(&self, _key: CounterKey<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn override_limit(
        &self,
        _key: CounterKey<'_>,
        _replacement: Option<Override>,
        _now: Timestamp,
    ) -> Result<(), StoreError> {
        Ok(())
    }
}
