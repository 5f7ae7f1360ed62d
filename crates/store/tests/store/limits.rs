//! The in-memory store over a long time: more limits, one after another, than it can number at once.

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
