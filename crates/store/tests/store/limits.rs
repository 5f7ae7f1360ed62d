//! The in-memory store over a long time, or with limits that requests carry: more limits than it can number at once.

use pollster::block_on;
use tidegate_core::{Algorithm, Check, CounterKey, Decision, Limit, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_store::{MemoryStore, Override, Store, StoreError};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const RULE: RuleId = RuleId::named("default");
const CAP: usize = 1 << 20;
/// Six times what can be numbered at once.
const ROUNDS: u64 = 100_000;

fn limit(requests: u64, seconds: u64) -> Limit {
    Limit::new(Algorithm::TokenBucket, Spec::new(requests, TimeSpan::from_secs(seconds))).unwrap()
}

fn decide(store: &MemoryStore, client: &[u8], limit: &Limit, now: Timestamp) -> Decision {
    block_on(store.decide(&[Check::new(CounterKey::new(RULE, client), limit)], now)).unwrap()
}

#[test]
fn override_with_fresh_limit_100_000_times_is_accepted() {
    let (store, rule) = (MemoryStore::with_cap(CAP), limit(5, 60));
    for n in 0..ROUNDS {
        let now = START + TimeSpan::from_secs(n);
        let replacement = Override { limit: limit(n + 10, 60), until: now + TimeSpan::from_secs(30) };
        block_on(store.override_limit(CounterKey::new(RULE, b"alice"), Some(replacement), now)).unwrap();
        assert_eq!(decide(&store, b"alice", &rule, now).outcomes[0].limit, n + 10);
    }
}

#[test]
fn decision_with_fresh_limit_100_000_times_succeeds_and_keeps_what_was_spent() {
    let store = MemoryStore::with_cap(CAP);
    for n in 0..ROUNDS {
        // No time passes, so everything spent so far stays spent.
        let outcome = decide(&store, b"alice", &limit(ROUNDS + n, 3_600), START).outcomes[0];
        assert_eq!(outcome.remaining, ROUNDS + n - (n + 1));
    }
}

#[test]
fn retain_limits_beyond_the_maximum_is_rejected_and_says_why() {
    let store = MemoryStore::with_cap(CAP);
    let all: Vec<_> = (1..=16_382).map(|n| limit(n, 60)).collect();
    let retained = store.retain_limits(&all, START).unwrap();
    let used = store.memory_use();
    assert_eq!((used.limits_in_use, used.limits_max), (16_382, 16_382));
    let one_more = store.retain_limits(&[limit(20_000, 60)], START).unwrap_err();
    assert!(matches!(one_more, StoreError::TooManyLimits { new: 1, in_use: 16_382, max: 16_382 }));
    let text = one_more.to_string();
    assert!(
        text.contains("16382 of at most 16382 are in use") && text.contains("1 more are needed"),
        "{text}"
    );
    assert!(decide(&store, b"alice", &all[0], START).passes(), "the retained limits still work");
    drop(retained);
    let _next = store.retain_limits(&[limit(20_000, 60)], START).unwrap();
}

/// A million limits that never expire in the test, each for a client of its own, and a client under a limit of the policy.
#[test]
fn decision_with_a_million_limits_at_once_stays_within_the_cap_and_leaves_numbers_to_policies() {
    let (cap, rule) = (8 << 20, limit(5, 86_400));
    let store = MemoryStore::with_cap(cap);
    let first = store.retain_limits(&[rule], START).unwrap();
    let early = limit(1, 400_000);
    assert!(decide(&store, b"early", &early, START).passes());
    for _ in 0..5 {
        assert!(decide(&store, b"policy", &rule, START).passes());
    }
    for n in 0..1_000_000_u64 {
        let now = START + TimeSpan::from_micros(n);
        let carried = limit(1 + n % 1_000, 100_000 + n / 1_000);
        let outcome = decide(&store, &n.to_be_bytes(), &carried, now).outcomes[0];
        assert_eq!(outcome.limit, carried.capacity());
    }
    let used = store.memory_use();
    assert!(used.table_bytes + used.pool_bytes <= cap as u64, "{used:?}");
    assert!(used.limits_in_use <= used.limits_max / 2 + 1, "{used:?}");
    assert!(used.carried_limits > 5_000 && used.overflowed > 100_000, "{used:?}");

    let later = START + TimeSpan::from_secs(10);
    assert!(!decide(&store, b"early", &early, later).passes(), "what was spent stays spent");
    assert!(!decide(&store, b"policy", &rule, later).passes(), "what was spent stays spent");
    let policy: Vec<_> = (1..=2_000).map(|n| limit(n, 7)).collect();
    let retained = store.retain_limits(&policy, later).unwrap();
    assert_eq!(decide(&store, b"policy", &policy[9], later).outcomes[0].remaining, 4);
    drop((first, retained));
}
