//! Stores that respond late or fail.

use std::sync::Mutex;

use tidegate_core::{
    Check, Coordination, Cost, CounterKey, Decision, Refund, RuleId, StoreFailureMode, TimeSpan, Timestamp,
};
use tidegate_limiter::{RuleCheck, Ruling, ServeReason};
use tidegate_policy::{ActivePolicy, ClientName, NoFiles, RuleClient, Scratch, compile};
use tidegate_store::{MemoryStore, Override, RuleSettings, Store, StoreError};

use crate::{Bench, served};

/// A store that responds late, or fails.
#[derive(Debug)]
struct Remote {
    memory: MemoryStore,
    fails: bool,
    /// How far its clock is ahead of the limiter's.
    ahead: TimeSpan,
    /// What was applied last.
    settings: Mutex<Vec<RuleSettings>>,
}

impl Remote {
    async fn memory(&self) -> Result<&MemoryStore, StoreError> {
        tokio::task::yield_now().await;
        let unavailable = || StoreError::Unavailable("the connection is closed".into());
        if self.fails { Err(unavailable()) } else { Ok(&self.memory) }
    }
}

impl Store for Remote {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.memory().await?.decide(checks, now + self.ahead).await
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        self.memory().await?.decide_batch(batch, now, decisions).await
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.memory().await?.peek(checks, now + self.ahead).await
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        self.memory().await?.refund(refunds, now + self.ahead).await
    }

    fn charge_time(&self, _rule: RuleId, now: Timestamp) -> Timestamp {
        now + self.ahead
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.memory().await?.reset(key).await
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.memory().await?.override_limit(key, replacement, now).await
    }

    fn apply_settings(&self, rules: &[RuleSettings]) {
        *self.settings.lock().expect("no other test has it") = rules.to_vec();
    }
}

fn bench(policy: &str, fails: bool) -> Bench<Remote> {
    Bench::on(
        policy,
        Remote {
            memory: MemoryStore::with_cap(1 << 20),
            fails,
            ahead: TimeSpan::ZERO,
            settings: Mutex::default(),
        },
    )
}

const LIMIT: &str = "requests: 1, window: 1h, algorithm: fixed_window";

#[tokio::test]
async fn check_store_responding_late_decides_the_same() {
    let bench = bench(&format!("rate_limits: {{ default: {{ {LIMIT} }} }}"), false);
    assert_eq!(bench.outcome("/").await, "admitted, 0 left of default");
    assert_eq!(bench.outcome("/").await, "rejected by default: Limit, Some(3600)");
}

#[tokio::test]
async fn check_store_failed_returns_whether_a_limit_can_reject() {
    let enforced = bench(&format!("rate_limits: {{ default: {{ {LIMIT} }} }}"), true);
    assert_eq!(enforced.outcome("/").await, "store failed, binding: true");
    let shadow = bench(&format!("rate_limits: {{ default: {{ {LIMIT}, mode: shadow }} }}"), true);
    assert_eq!(shadow.outcome("/").await, "store failed, binding: false");
    let unlimited = bench("rate_limits: { rules: [{ name: exports, per: [ip], concurrent: 1 }] }", true);
    assert_eq!(unlimited.outcome("/").await, "admitted", "the store is not called");
}

#[tokio::test]
async fn check_store_failed_without_permits_rejects() {
    let policy = format!(
        "rate_limits: {{ default: {{ {LIMIT}, mode: shadow }}, rules: [{{ name: exports, per: [ip], concurrent: 1 }}] }}"
    );
    let bench = bench(&policy, true);
    let permits = bench.check("/", &[], |ruling| {
        let serve = served(ruling);
        assert_eq!(serve.reason, ServeReason::StoreFailed);
        serve.permits
    });
    let _permits = permits.await;
    assert_eq!(bench.outcome("/").await, "rejected by exports: Concurrency, Some(1)");
}

#[test]
fn settings_of_rules_apply_at_the_start_and_when_a_policy_is_activated() {
    let policy = |coordination: &str| {
        format!(
            "store: {{ url: redis://a }}\nrate_limits: {{ default: {{ {LIMIT}, coordination: {coordination} }} }}"
        )
    };
    let bench = bench(&policy("lease"), false);
    let settings = || bench.limiter.store().settings.lock().expect("no other test has it").clone();
    let expected = |coordination| {
        let (rule, on_store_failure) = (RuleId::named("default"), StoreFailureMode::Local);
        [RuleSettings { rule, coordination, on_store_failure }]
    };
    assert_eq!(settings(), expected(Coordination::Lease));
    let plan = compile("policy.yaml", policy("sync").as_bytes(), &NoFiles).expect("a policy").plan;
    let prepared = bench.limiter.prepare(ActivePolicy::new(plan)).expect("limits");
    assert_eq!(settings(), expected(Coordination::Lease), "a prepared policy changes nothing");
    bench.limiter.activate(prepared);
    assert_eq!(settings(), expected(Coordination::Sync));
}

#[tokio::test]
async fn refund_without_a_time_uses_the_clock_of_the_store() {
    let policy = format!("rate_limits: {{ default: {{ {LIMIT} }} }}");
    let (memory, settings) = (MemoryStore::with_cap(1 << 20), Mutex::default());
    let store = Remote { memory, fails: false, ahead: TimeSpan::from_secs(5_000), settings };
    let bench = Bench::on(&policy, store);
    let policy = bench.limiter.policy();
    let name = ClientName::of_identity("ip:203.0.113.7").expect("a name");
    let client = RuleClient::new(&name, &policy.matcher.plan().identities).expect("a client");
    let check = || RuleCheck { rule: "default", client: &client, cost: Cost::ONE };
    for _ in 0..2 {
        let mut scratch = Scratch::default();
        let ruling = bench.limiter.check_rule(&policy, check(), &mut scratch, bench.now()).await;
        assert!(matches!(ruling, Ok(Ruling::Serve(_))), "the charge was refunded");
        drop(ruling);
        assert!(bench.limiter.refund_rule(&policy, check(), None, bench.now()).await.unwrap());
    }
}

#[tokio::test]
async fn refund_of_a_charge_before_a_reset_is_known_by_the_clock_of_the_store() {
    let policy = format!("rate_limits: {{ default: {{ {LIMIT} }} }}");
    let (memory, settings) = (MemoryStore::with_cap(1 << 20), Mutex::default());
    let store = Remote { memory, fails: false, ahead: TimeSpan::from_secs(5_000), settings };
    let bench = Bench::on(&policy, store);
    let policy = bench.limiter.policy();
    let name = ClientName::of_identity("ip:203.0.113.7").expect("a name");
    let client = RuleClient::new(&name, &policy.matcher.plan().identities).expect("a client");
    let check = || RuleCheck { rule: "default", client: &client, cost: Cost::ONE };
    let charge = async || {
        let mut scratch = Scratch::default();
        match bench.limiter.check_rule(&policy, check(), &mut scratch, bench.now()).await.unwrap() {
            Ruling::Serve(ruling) => ruling.report.at(),
            other => panic!("{other:?}"),
        }
    };
    let refund = async |charged| {
        bench.limiter.refund_rule(&policy, check(), Some(charged), bench.now()).await.unwrap()
    };
    let early = charge().await;
    bench.clock.advance(TimeSpan::from_micros(1));
    bench.limiter.reset_rule(&policy, ("default", client.key())).await.unwrap();
    bench.clock.advance(TimeSpan::from_micros(1));
    let late = charge().await;
    assert!(!refund(early).await, "the counter contains only the later charge");
    assert!(refund(late).await);
}
