//! The limiter with stores that respond later or fail.

use tidegate_core::{Check, Decision, Key, Refund, Timestamp};
use tidegate_store::{MemoryStore, Override, Store, StoreError};

use crate::Setup;

/// A store that responds later or fails.
#[derive(Debug)]
struct Remote {
    memory: MemoryStore,
    fails: bool,
}

impl Remote {
    async fn respond(&self) -> Result<&MemoryStore, StoreError> {
        tokio::task::yield_now().await;
        let gone = || StoreError::Unavailable("the connection is closed".into());
        if self.fails { Err(gone()) } else { Ok(&self.memory) }
    }
}

impl Store for Remote {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.respond().await?.decide(checks, now).await
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        self.respond().await?.decide_batch(batch, now, decisions).await
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.respond().await?.peek(checks, now).await
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        self.respond().await?.refund(refunds, now).await
    }

    async fn reset(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.respond().await?.reset(key).await
    }

    async fn override_limit(
        &self,
        key: Key<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.respond().await?.override_limit(key, replacement, now).await
    }
}

fn setup(policy: &str, fails: bool) -> Setup<Remote> {
    Setup::on(policy, Remote { memory: MemoryStore::with_cap(1 << 20), fails })
}

const LIMIT: &str = "requests: 1, window: 1h, algorithm: fixed_window";

#[tokio::test]
async fn check_with_a_store_that_responds_later_decides_the_same() {
    let setup = setup(&format!("rate_limits: {{ default: {{ {LIMIT} }} }}"), false);
    assert_eq!(setup.outcome("/").await, "admitted, 0 left of default");
    assert_eq!(setup.outcome("/").await, "rejected by default: Limit, Some(3600)");
}

#[tokio::test]
async fn check_with_a_store_that_fails_returns_whether_a_limit_can_reject() {
    let enforced = setup(&format!("rate_limits: {{ default: {{ {LIMIT} }} }}"), true);
    assert_eq!(enforced.outcome("/").await, "store failed, binding: true");
    let shadow = setup(&format!("rate_limits: {{ default: {{ {LIMIT}, mode: shadow }} }}"), true);
    assert_eq!(shadow.outcome("/").await, "store failed, binding: false");
    let unlimited = setup("rate_limits: { rules: [{ name: exports, per: [ip], concurrent: 1 }] }", true);
    assert_eq!(unlimited.outcome("/").await, "admitted", "the store is not called");
}

#[tokio::test]
async fn check_with_a_store_that_fails_still_rejects_for_lack_of_permits() {
    let policy = format!(
        "rate_limits: {{ default: {{ {LIMIT}, mode: shadow }}, rules: [{{ name: exports, per: [ip], concurrent: 1 }}] }}"
    );
    let setup = setup(&policy, true);
    let permits = setup.check("/", &[], |ruling| match ruling {
        tidegate_limiter::Ruling::StoreFailed(failed) => failed.permits,
        other => panic!("{other:?}"),
    });
    let _permits = permits.await;
    assert_eq!(setup.outcome("/").await, "rejected by exports: Concurrency, Some(1)");
}
