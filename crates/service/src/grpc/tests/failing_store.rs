//! Calls while the store of the counters fails.

use tidegate_core::{Check, CounterKey, Decision, Refund};
use tidegate_store::{Override, Store, StoreError};

use super::*;

/// A store without a connection.
struct FailingStore;

fn unavailable<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable("the connection is closed".into()))
}

impl Store for FailingStore {
    async fn decide(&self, _checks: &[Check<'_>], _now: Timestamp) -> Result<Decision, StoreError> {
        unavailable()
    }

    async fn decide_batch(
        &self,
        _batch: &[&[Check<'_>]],
        _now: Timestamp,
        _decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        unavailable()
    }

    async fn peek(&self, _checks: &[Check<'_>], _now: Timestamp) -> Result<Decision, StoreError> {
        unavailable()
    }

    async fn refund(&self, _refunds: &[Refund<'_>], _now: Timestamp) -> Result<bool, StoreError> {
        unavailable()
    }

    async fn reset(&self, _key: CounterKey<'_>) -> Result<(), StoreError> {
        unavailable()
    }

    async fn override_limit(
        &self,
        _key: CounterKey<'_>,
        _replacement: Option<Override>,
        _now: Timestamp,
    ) -> Result<(), StoreError> {
        unavailable()
    }
}

#[tokio::test]
async fn store_failed_a_limit_of_zero_rejects_and_another_fails_the_call() {
    let envoy = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: blocked, rate_limit: { unit: minute, requests_per_unit: 0 } }
";
    let service = LoopbackService::start_on(FailingStore, "rate_limits: {}", envoy);
    let caller = service.connect().await;
    let (user, blocked) = (descriptor(&[("user", "bob")]), descriptor(&[("blocked", "a")]));
    for descriptors in
        [vec![blocked.clone()], vec![blocked.clone(), user.clone()], vec![user.clone(), blocked]]
    {
        let reply = caller.ask(&request("d", descriptors)).await;
        assert_eq!(reply.response().overall_code, OVER_LIMIT);
    }
    assert_eq!(caller.ask(&request("d", vec![user])).await.status, 14, "UNAVAILABLE");
}
