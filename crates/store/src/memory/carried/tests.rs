#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use fastrand::Rng;
use pollster::block_on;
use tidegate_core::{Check, CounterKey, Decision, Refund, RuleId};

use super::*;
use crate::conformance::{Suite, assert_two_threads_admit_exactly_the_limit};
use crate::memory::limit_registry::LimitRegistry;
use crate::{MemoryStore, Store};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const RULE: RuleId = RuleId::named("carried");

/// A store in which at most `numbers` limits have a number unless they are retained.
fn store(cap: usize, numbers: usize) -> MemoryStore {
    MemoryStore::with_limits(cap, LimitRegistry::with_max_unpinned(numbers))
}

fn window(requests: u64, seconds: u64) -> Limit {
    Limit::new(Algorithm::FixedWindow, Spec::new(requests, TimeSpan::from_secs(seconds))).unwrap()
}

fn random_limit(rng: &mut Rng) -> Limit {
    let algorithm = *rng.choice(Algorithm::ALL).unwrap();
    loop {
        let spec = Spec {
            requests: 1 + (rng.u64(..) >> rng.u32(11..63)),
            window: TimeSpan::from_micros(1 + (rng.u64(..) >> rng.u32(11..63))),
            burst: rng.bool().then(|| 1 + (rng.u64(..) >> rng.u32(11..63))),
            max_wait: rng.bool().then(|| TimeSpan::from_micros(rng.u64(..) >> rng.u32(0..64))),
            borrow: None,
        };
        let [units, repay] = [(); 2].map(|()| 1 + (rng.u64(..) >> rng.u32(11..64)));
        let lending = Spec { max_wait: None, borrow: Some(Borrow { units, repay }), ..spec };
        let without = Spec { burst: None, max_wait: None, ..spec };
        let limit = Limit::new(algorithm, lending).or_else(|_| Limit::new(algorithm, spec));
        if let Ok(limit) = limit.or_else(|_| Limit::new(algorithm, without)) {
            return limit;
        }
    }
}

#[test]
fn compact_limit_restored_equals_the_limit() {
    let mut rng = Rng::new();
    for _ in 0..20_000 {
        let limit = random_limit(&mut rng);
        assert_eq!(CompactLimit::new(&limit).restore(), Some(limit));
    }
}

fn check<'a>(client: &'a [u8], limit: &'a Limit) -> Check<'a> {
    Check::new(CounterKey::new(RULE, client), limit)
}

fn decide(store: &MemoryStore, client: &[u8], limit: &Limit, now: Timestamp) -> Decision {
    block_on(store.decide(&[check(client, limit)], now)).unwrap()
}

#[test]
fn store_with_few_numbers_passes_the_conformance_suite() {
    for numbers in [0, 1, 2, 5] {
        let seed = fastrand::u64(..);
        println!("{numbers} numbers, seed {seed}");
        for trace in 0..25 {
            let store = store(1 << 20, numbers);
            // No sweeps: the oracle remembers when a counter expired, a store that has swept the counter does not. This shows
            // if the limit changes and then time goes back.
            let _no_sweep = store.table.sweep.lock().unwrap();
            let seed = seed.wrapping_add(trace);
            let suite = Suite { algorithms: Algorithm::ALL, seed, traces: 1, steps: 250 };
            block_on(suite.run(&store));
        }
    }
}

#[test]
fn two_threads_under_carried_limits_admit_exactly_the_limit() {
    for numbers in [0, 1] {
        for &algorithm in Algorithm::ALL {
            assert_two_threads_admit_exactly_the_limit(&store(4 << 20, numbers), algorithm);
        }
    }
}

#[test]
fn counter_moves_between_numbered_and_carried_limits_and_keeps_what_was_spent() {
    let (store, numbered, carried) = (store(64 << 10, 1), window(10, 60), window(20, 60));
    assert_eq!(decide(&store, b"alice", &numbered, START).outcomes[0].remaining, 9);
    assert_eq!(decide(&store, b"alice", &carried, START).outcomes[0].remaining, 18);
    assert_eq!(store.memory_use().carried_limits, 1);
    assert_eq!(decide(&store, b"alice", &numbered, START).outcomes[0].remaining, 7);
    assert_eq!((store.memory_use().carried_limits, store.memory_use().pool_bytes), (0, 0));
    // A limit that is retained while its counter is carried gets a number.
    decide(&store, b"alice", &carried, START);
    let retained = store.retain_limits(&[carried], START).unwrap();
    let left = decide(&store, b"alice", &carried, START).outcomes[0].remaining;
    assert_eq!((left, store.memory_use().carried_limits), (15, 0));
    drop(retained);
}

#[test]
fn charge_under_a_carried_limit_is_refunded_after_the_limit_got_a_number() {
    let (store, limit) = (store(64 << 10, 0), window(10, 60));
    let decision = decide(&store, b"alice", &limit, START);
    let checks = [check(b"alice", &limit)];
    let _retained = store.retain_limits(&[limit], START).unwrap();
    let refunds: Vec<Refund<'_>> = decision.refunds(&checks).into_iter().collect();
    block_on(store.refund(&refunds, START)).unwrap();
    assert_eq!(block_on(store.peek(&checks, START)).unwrap().outcomes[0].remaining, 10);
}

#[test]
fn reset_of_a_carried_counter_frees_its_places() {
    let store = store(64 << 10, 0);
    for &algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, Spec::new(1, TimeSpan::from_secs(60))).unwrap();
        assert!(decide(&store, b"alice", &limit, START).passes());
        assert!(!decide(&store, b"alice", &limit, START).passes(), "{algorithm}");
        block_on(store.reset(CounterKey::new(RULE, b"alice"))).unwrap();
        assert_eq!((store.memory_use().carried_limits, store.memory_use().pool_bytes), (0, 0));
    }
}

#[test]
fn sweep_keeps_live_carried_counters_and_empties_expired_ones() {
    let (store, year) = (store(64 << 10, 0), window(1, 365 * 86_400));
    assert!(decide(&store, b"alice", &year, START).passes());
    for client in 0_u64..50 {
        assert!(decide(&store, &client.to_be_bytes(), &window(client + 1, 1), START).passes());
    }
    assert_eq!(store.memory_use().carried_limits, 51);
    let later = START + TimeSpan::from_secs(3_600);
    store.table.reclaim_all(later);
    assert_eq!(store.memory_use().carried_limits, 1);
    assert!(!decide(&store, b"alice", &year, later).passes(), "what was spent stays spent");
}

#[test]
fn slot_of_an_expired_carried_counter_is_reused() {
    let store = store(16 << 10, 0);
    for second in 0_u64..500 {
        let now = START + TimeSpan::from_secs(2 * second);
        for client in 0..5 {
            let client = second * 5 + client;
            assert!(decide(&store, &client.to_be_bytes(), &window(client + 1, 1), now).passes());
        }
    }
    assert_eq!(store.memory_use().overflowed, 0, "{:?}", store.memory_use());
}

/// A flood of carried limits that fills the pool.
fn flood(store: &MemoryStore) {
    for client in 0_u64..5_000 {
        let limit = window(1 + client % 40, 3_600 + client);
        decide(store, &client.to_be_bytes(), &limit, START);
    }
}

#[test]
fn flood_of_carried_limits_leaves_live_counters_and_room_for_logs() {
    let cap = 128 << 10;
    let (store, carried, policy) = (store(cap, 0), window(3, 86_400), window(5, 86_400));
    let log = Limit::new(Algorithm::SlidingLog, Spec::new(10, TimeSpan::from_secs(60))).unwrap();
    let _retained = store.retain_limits(&[policy, log], START).unwrap();
    for _ in 0..5 {
        decide(&store, b"carried", &carried, START);
        decide(&store, b"policy", &policy, START);
    }
    flood(&store);
    let used = store.memory_use();
    assert!(used.overflowed > 0 && used.table_bytes + used.pool_bytes <= cap as u64, "{used:?}");
    assert!(!decide(&store, b"carried", &carried, START).passes());
    assert!(!decide(&store, b"policy", &policy, START).passes());
    for client in 0_u64..20 {
        let left =
            decide(&store, &[b"log", &client.to_be_bytes()[..]].concat(), &log, START).outcomes[0].remaining;
        assert_eq!(left, 9, "a log of its own");
    }
    // The pool has no room to convert this counter. It stays as it is, and the key is limited all the same.
    let strict = window(2, 7_200);
    let passed = (0..10).filter(|_| decide(&store, b"policy", &strict, START).passes()).count();
    assert!(passed <= 2, "{passed} passed");
    assert!(!decide(&store, b"policy", &policy, START).passes(), "what was spent stays spent");
}

#[test]
fn keys_without_room_in_the_pool_are_limited_together() {
    for &algorithm in Algorithm::ALL {
        let store = store(64 << 10, 0);
        flood(&store);
        let full = store.memory_use();
        let limit = Limit::new(algorithm, Spec::new(10, TimeSpan::from_secs(3_600))).unwrap();
        for client in 0..100_u64 {
            let client = [b"new", &client.to_be_bytes()[..]].concat();
            let passed = (0..50).filter(|_| decide(&store, &client, &limit, START).passes()).count();
            assert!(passed <= 10, "{algorithm}: {passed} passed");
        }
        assert_eq!(store.memory_use().carried_limits, full.carried_limits);
        assert!(store.memory_use().overflowed > full.overflowed, "{algorithm}");
    }
}

/// Law: what a shared counter admits, each limit would also admit if it counted its own units alone.
#[test]
fn shared_usage_admits_at_most_what_each_limit_admits_alone() {
    let mut rng = Rng::new();
    for _ in 0..200 {
        let mut alone: Vec<_> = (0..3)
            .map(|_| {
                let algorithm = *rng.choice(Algorithm::ALL).unwrap();
                let spec = Spec::new(rng.u64(1..20), TimeSpan::from_millis(rng.u64(1..5_000)));
                (Limit::new(algorithm, spec).unwrap(), CounterState::Unseen)
            })
            .collect();
        let (mut usage, mut now, mut admitted) = (SharedUsage::default(), START, 0);
        for _ in 0..500 {
            now = now + TimeSpan::from_micros(rng.u64(0..2) * rng.u64(0..2_000_000));
            let ((limit, state), cost) = (&mut alone[rng.usize(0..3)], Cost::new(rng.u64(0..4)));
            if usage.evaluate(limit, now, cost).verdict.is_pass() {
                assert!(limit.evaluate(state, now, cost).verdict.is_pass(), "{limit:?}");
                usage.change(limit, now, |state| limit.charge(state, now, cost));
                limit.charge(state, now, cost);
                admitted += 1;
            }
        }
        assert!(admitted > 0);
    }
}
