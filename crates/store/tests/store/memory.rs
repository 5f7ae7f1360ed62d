//! The in-memory store: the conformance suite, several threads, and what happens when it is full.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pollster::block_on;
use tidegate_core::{Algorithm, Check, CounterKey, Decision, Limit, Role, RuleId, Spec, TimeSpan, Timestamp};
use tidegate_store::conformance::{Suite, assert_two_threads_admit_exactly_the_limit};
use tidegate_store::{MemoryStore, Store};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const RULE: RuleId = RuleId::named("default");
const LARGE_CAP: usize = 16 << 20;

/// The leaky bucket may delay requests for any time.
fn limit(algorithm: Algorithm, requests: u64, seconds: u64) -> Limit {
    let max_wait = (algorithm == Algorithm::LeakyBucket).then_some(TimeSpan::MAX);
    Limit::new(algorithm, Spec { max_wait, ..Spec::new(requests, TimeSpan::from_secs(seconds)) }).unwrap()
}

fn decide(store: &MemoryStore, checks: &[Check<'_>], now: Timestamp) -> Decision {
    block_on(store.decide(checks, now)).unwrap()
}

#[test]
fn memory_store_passes_the_conformance_suite() {
    let suite = Suite { algorithms: Algorithm::ALL, seed: fastrand::u64(..), traces: 200, steps: 400 };
    let coverage = block_on(suite.run(&MemoryStore::with_cap(LARGE_CAP)));
    println!("seed {}: {coverage:?}", suite.seed);
    assert_eq!(coverage.awaited, 0, "the store never waits");
}

#[test]
fn memory_store_with_one_algorithm_passes_the_conformance_suite() {
    for algorithms in Algorithm::ALL.chunks(1) {
        let suite = Suite { algorithms, seed: fastrand::u64(..), traces: 40, steps: 400 };
        block_on(suite.run(&MemoryStore::with_cap(LARGE_CAP)));
    }
}

/// Traces for one store. Each has a time of its own and up to 9 overrides. A store with 64 overrides removes those that have
/// expired, and those of a trace in an earlier year have expired at the time of another.
const TRACES: u64 = 3;

/// Each thread replays traces of its own keys against its own oracle; the keys share lines and locks.
fn replay_on_two_threads(steps: usize) -> u64 {
    let traces = TRACES;
    // Enough room also for states that do not fit a word.
    let store = MemoryStore::with_cap(usize::try_from(traces).unwrap() << 17);
    let seed = fastrand::u64(..);
    thread::scope(|scope| {
        let players: Vec<_> = (0..2)
            .map(|player| {
                let store = &store;
                let seed = seed.wrapping_add(player * traces);
                scope.spawn(move || {
                    block_on(Suite { algorithms: Algorithm::ALL, seed, traces, steps }.run(store)).decisions
                })
            })
            .collect();
        players.into_iter().map(|player| player.join().unwrap()).sum()
    })
}

#[test]
fn memory_store_with_two_threads_passes_the_conformance_suite() {
    for _ in 0..34 {
        replay_on_two_threads(400);
    }
}

#[test]
#[ignore = "long: cargo xtask scorecard equivalence"]
fn long_equivalence() {
    // A separate store for each, so that it has numbers for all limits and sweeps no counter. The oracle remembers when a
    // counter expired, a store that has swept it does not, and this shows if time goes back.
    let decisions: u64 = (0..3_340).map(|_| replay_on_two_threads(500)).sum();
    println!("memory store, 2 threads: {decisions} decisions, 0 mismatches");
}

#[test]
fn two_threads_on_two_keys_admit_exactly_the_limit() {
    for &algorithm in Algorithm::ALL {
        assert_two_threads_admit_exactly_the_limit(&MemoryStore::with_cap(LARGE_CAP), algorithm);
    }
}

#[test]
fn advisory_check_is_charged_until_full_and_never_rejects() {
    let (narrow, wide) = (limit(Algorithm::FixedWindow, 2, 60), limit(Algorithm::FixedWindow, 5, 60));
    let store = MemoryStore::with_cap(LARGE_CAP);
    let shadow = Check::new(CounterKey::new(RuleId::named("shadow"), b"a"), &narrow).role(Role::Advisory);
    let binding = Check::new(CounterKey::new(RuleId::named("binding"), b"a"), &wide);
    let decisions: Vec<_> = (0..6).map(|_| decide(&store, &[shadow, binding], START)).collect();
    let passes: Vec<_> = decisions.iter().map(Decision::passes).collect();
    assert_eq!(passes, [true, true, true, true, true, false]);
    let would_reject: Vec<_> = decisions.iter().map(|one| !one.outcomes[0].verdict.is_pass()).collect();
    assert_eq!(would_reject, [false, false, true, true, true, true]);
}

#[test]
fn two_threads_on_one_key_admit_exactly_the_limit() {
    for &algorithm in Algorithm::ALL {
        let limit = limit(algorithm, 5_000, 3_600);
        let store = MemoryStore::with_cap(LARGE_CAP);
        let passed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let check = Check::new(CounterKey::new(RULE, b"hot"), &limit);
                    for _ in 0..4_000 {
                        passed.fetch_add(
                            u64::from(decide(&store, &[check], START).passes()),
                            Ordering::Relaxed,
                        );
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), limit.capacity(), "{algorithm}");
    }
}

/// A table of a few lines and far more keys: new keys share counters, and no key is unlimited.
#[test]
fn full_store_limits_new_keys_together_and_evicts_no_live_key() {
    for &algorithm in Algorithm::ALL {
        let limit = limit(algorithm, 10, 3_600);
        let store = MemoryStore::with_cap(8 << 10);
        let abuser = Check::new(CounterKey::new(RuleId::named("login"), b"abuser"), &limit);
        for _ in 0..=limit.capacity() {
            decide(&store, &[abuser], START);
        }
        let mut passed = 0;
        for client in 0_u64..20_000 {
            let client = client.to_be_bytes();
            passed += u64::from(
                decide(&store, &[Check::new(CounterKey::new(RULE, &client), &limit)], START).passes(),
            );
            if client[7] == 0 {
                assert!(!decide(&store, &[abuser], START).passes(), "{algorithm}: the abuser stays rejected");
            }
        }
        assert!(store.memory_use().overflowed > 0, "{algorithm}");
        // At most one unit per slot, and ten per shared counter.
        let slots = store.memory_use().table_bytes / 16;
        let most = slots + 256 * limit.capacity();
        assert!(passed <= most, "{algorithm}: {passed} passed, at most {most}");
    }
}

#[test]
fn slot_of_an_expired_key_is_reused() {
    let limit = limit(Algorithm::TokenBucket, 1, 1);
    let store = MemoryStore::with_cap(8 << 10);
    for second in 0_u64..1_000 {
        for client in 0..50 {
            let client = (second * 50 + client).to_be_bytes();
            let check = Check::new(CounterKey::new(RULE, &client), &limit);
            assert!(decide(&store, &[check], START + TimeSpan::from_secs(2 * second)).passes());
        }
    }
    assert_eq!(store.memory_use().overflowed, 0, "50 keys at a time fit a hundred times over");
}

/// New clients in each period; those of earlier periods are idle.
fn replay_logs(store: &MemoryStore, clients: u64, periods: u64) {
    let limit = limit(Algorithm::SlidingLog, 100, 60);
    for period in 0..periods {
        for client in 0..clients {
            let client = (period * clients + client).to_be_bytes();
            for request in 0..5 {
                let now = START + TimeSpan::from_secs(120 * period) + TimeSpan::from_millis(request);
                decide(store, &[Check::new(CounterKey::new(RULE, &client), &limit)], now);
            }
        }
    }
}

#[test]
fn sliding_log_memory_of_idle_keys_is_reused() {
    let store = MemoryStore::with_cap(256 << 10);
    replay_logs(&store, 50, 50);
    assert_eq!(store.memory_use().overflowed, 0, "{:?}", store.memory_use());
}

#[test]
fn sliding_logs_stay_within_the_memory_cap() {
    let cap = 64 << 10;
    let store = MemoryStore::with_cap(cap);
    // Many times what fits, already in the first period.
    replay_logs(&store, 1_000, 4);
    let used = store.memory_use();
    assert!(used.table_bytes + used.pool_bytes <= cap as u64, "{used:?}");
    assert!(used.overflowed > 0, "{used:?}");
}

#[test]
fn memory_store_reports_the_heaviest_key() {
    let limit = limit(Algorithm::FixedWindow, 10, 60);
    let store = MemoryStore::with_cap(LARGE_CAP);
    for n in 0_u64..100_000 {
        let now = START + TimeSpan::from_micros(n);
        decide(&store, &[Check::new(CounterKey::new(RULE, &n.to_be_bytes()), &limit)], now);
        decide(&store, &[Check::new(CounterKey::new(RULE, b"abuser"), &limit)], now);
    }
    let heaviest = store.heaviest();
    assert_eq!(&*heaviest[0].key.client, b"abuser");
    assert!(heaviest[0].rejected > 50_000 && heaviest[0].rejected < 200_000, "{:?}", heaviest[0]);
}
