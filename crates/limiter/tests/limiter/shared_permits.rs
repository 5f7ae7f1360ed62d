//! Concurrency limits whose permits the store grants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_core::{Check, CounterKey, Decision, Refund, Timestamp};
use tidegate_limiter::Ruling;
use tidegate_store::{MemoryStore, Override, PermitGrant, SharedPermit, Store, StoreError};

use crate::{Bench, served};

/// What the store answers.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// Grants the permits that no other node has.
    Shared,
    Local(u32),
    Unlimited,
    Failed,
    /// Never answers.
    Silent,
}

/// A store that grants permits of which other nodes may have some.
#[derive(Debug)]
struct PermitStore {
    memory: MemoryStore,
    answer: Answer,
    in_use: Arc<AtomicU32>,
}

/// Releases a permit.
struct Release(Arc<AtomicU32>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Store for PermitStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.memory.decide(checks, now).await
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        self.memory.decide_batch(batch, now, decisions).await
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.memory.peek(checks, now).await
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        self.memory.refund(refunds, now).await
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
        self.memory.override_limit(key, replacement, now).await
    }

    async fn acquire_permit(
        &self,
        _: CounterKey<'_>,
        max: u32,
        _: Timestamp,
    ) -> Result<PermitGrant, StoreError> {
        tokio::task::yield_now().await;
        match self.answer {
            Answer::Shared if self.in_use.load(Ordering::Relaxed) >= max => Ok(PermitGrant::Exhausted),
            Answer::Shared => {
                self.in_use.fetch_add(1, Ordering::Relaxed);
                Ok(PermitGrant::Shared(SharedPermit::new(Release(Arc::clone(&self.in_use)))))
            }
            Answer::Local(max) => Ok(PermitGrant::Local { max }),
            Answer::Unlimited => Ok(PermitGrant::Unlimited),
            Answer::Failed => Err(StoreError::Unavailable("the connection is closed".into())),
            Answer::Silent => std::future::pending().await,
        }
    }
}

/// Other nodes have `elsewhere` permits.
fn bench(rules: &str, answer: Answer, elsewhere: u32) -> Bench<PermitStore> {
    let policy = format!("store: {{ url: redis://a }}\nrate_limits:\n{rules}");
    let in_use = Arc::new(AtomicU32::new(elsewhere));
    Bench::on(&policy, PermitStore { memory: MemoryStore::with_cap(1 << 20), answer, in_use })
}

fn in_use(bench: &Bench<PermitStore>) -> (u32, u64) {
    (bench.limiter.store().in_use.load(Ordering::Relaxed), bench.limiter.permits().in_use())
}

/// Sends a request and keeps its permits.
async fn start(bench: &Bench<PermitStore>) -> impl Sized + use<> {
    bench.check("/", &[], |ruling| served(ruling).permits).await
}

const TWO: &str = "  rules: [{ name: exports, concurrent: 2, coordination: central }]";
const REJECTED: &str = "rejected by exports: Concurrency, Some(1)";

#[tokio::test]
async fn shared_permits_that_other_nodes_use_reject_here() {
    let bench = bench(TWO, Answer::Shared, 1);
    let permits = start(&bench).await;
    assert_eq!(bench.outcome("/").await, REJECTED);
    assert_eq!(in_use(&bench), (2, 1), "the rejected request has no permit of its own");
    drop(permits);
    assert_eq!(in_use(&bench), (1, 0));
    assert_eq!(bench.outcome("/").await, "admitted");
}

#[tokio::test]
async fn shared_permit_is_released_if_a_later_permit_or_a_limit_rejects() {
    let rules = "  default: { requests: 1, window: 1h, algorithm: fixed_window }\n".to_owned() + TWO;
    let limited = bench(&rules, Answer::Shared, 0);
    assert_eq!(limited.outcome("/").await, "admitted, 0 left of default");
    assert_eq!(limited.outcome("/").await, "rejected by default: Limit, Some(3600)");
    assert_eq!(in_use(&limited), (0, 0));
    let rules = "  rules:\n  - { name: first, concurrent: 3, coordination: central }\n\
                 \x20 - { name: exports, concurrent: 2, coordination: central }\n";
    // The first rule gets the second permit, and none is left for the other.
    let two = bench(rules, Answer::Shared, 1);
    assert_eq!(two.outcome("/").await, REJECTED);
    assert_eq!(in_use(&two), (1, 0));
}

#[tokio::test]
async fn shared_permit_of_a_cancelled_request_is_released() {
    let rules = "  rules:\n  - { name: first, concurrent: 3 }\n\
                 \x20 - { name: exports, concurrent: 2, coordination: central }\n";
    let bench = bench(rules, Answer::Silent, 0);
    tokio::select! {
        biased;
        outcome = bench.outcome("/") => panic!("{outcome}"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(in_use(&bench), (0, 0));
}

#[tokio::test]
async fn shared_permits_while_the_store_fails_follow_the_failure_mode() {
    let local = bench(TWO, Answer::Local(1), 0);
    let permits = start(&local).await;
    assert_eq!(local.outcome("/").await, REJECTED, "the node may have one request in progress");
    drop(permits);
    assert_eq!(local.outcome("/").await, "admitted");
    let rule = "  rules: [{ name: exports, concurrent: 1, coordination: central, on_store_failure: allow }]";
    let allowed = bench(rule, Answer::Unlimited, 0);
    let _permits = (start(&allowed).await, start(&allowed).await);
    let denied = bench(TWO, Answer::Failed, 0);
    assert_eq!(denied.outcome("/").await, "store failed, binding: true");
    assert_eq!(in_use(&denied), (0, 0));
}

#[tokio::test]
async fn shared_permits_in_shadow_mode_never_reject() {
    let rule = "  rules: [{ name: exports, concurrent: 1, coordination: central, mode: shadow }]";
    assert_eq!(bench(rule, Answer::Shared, 1).outcome("/").await, "admitted");
    assert_eq!(bench(rule, Answer::Failed, 0).outcome("/").await, "admitted");
}

#[tokio::test]
async fn shared_permits_in_a_store_of_one_process_count_there() {
    let policy = format!("store: {{ url: redis://a }}\nrate_limits:\n{TWO}");
    let bench = Bench::new(&policy);
    let keep = |ruling: Ruling<'_>| served(ruling).permits;
    let _permits = (bench.check("/", &[], keep).await, bench.check("/", &[], keep).await);
    assert_eq!(bench.outcome("/").await, REJECTED);
}
