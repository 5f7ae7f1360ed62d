//! Explores all interleavings of two threads on one table with loom: `cargo xtask loom`.

use loom::sync::Arc;
use loom::thread;
use tidegate_core::{Algorithm, RuleId, Spec, TimeSpan};

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// A store with the smallest table and a fixed hash seed, as loom requires.
fn store() -> Arc<MemoryStore> {
    store_with(LimitRegistry::new(), 0)
}

fn store_with(limits: LimitRegistry, pool_bytes: u64) -> Arc<MemoryStore> {
    Arc::new(MemoryStore {
        table: CounterTable::new(1, limits, Pool::new(pool_bytes)),
        hasher: KeyHasher::fixed(),
        overrides: Overrides::default(),
        metrics: StoreMetrics::default(),
        heavy_hitters: HeavyHitters::default(),
    })
}

/// Explores interleavings with at most three preemptions. More takes minutes and has found nothing so far.
fn model(test: impl Fn(Algorithm) + Copy + Sync + Send + 'static) {
    model_within(3, test);
}

fn model_within(preemptions: usize, test: impl Fn(Algorithm) + Copy + Sync + Send + 'static) {
    // One algorithm with its own fast path, and one for all others.
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(move || test(algorithm));
    }
}

fn decide(store: &MemoryStore, algorithm: Algorithm, clients: &[&'static [u8]], requests: u64) -> bool {
    let spec = Spec::new(requests, TimeSpan::from_secs(60));
    let limit = Limit::new(algorithm, spec).expect("a valid limit");
    let check = |client: &&'static [u8]| Check::new(CounterKey::new(RuleId::named("rule"), client), &limit);
    let checks: Vec<_> = clients.iter().map(check).collect();
    store.decide_now(&checks, NOW).expect("there are few limits").passes()
}

/// Two threads decide the checks of `clients` concurrently. Returns how many were admitted.
fn race(
    store: &Arc<MemoryStore>,
    algorithm: Algorithm,
    clients: [&'static [&'static [u8]]; 2],
    requests: u64,
) -> usize {
    let racers = clients.map(|clients| {
        let store = Arc::clone(store);
        thread::spawn(move || decide(&store, algorithm, clients, requests))
    });
    racers.map(|racer| racer.join().expect("no racer panics")).into_iter().filter(|passed| *passed).count()
}

#[test]
fn loom_two_decisions_for_a_new_key_share_one_counter() {
    model(|algorithm| assert_eq!(race(&store(), algorithm, [&[b"a"], &[b"a"]], 1), 1));
}

#[test]
fn loom_two_decisions_for_the_last_unit_of_a_known_key_admit_one() {
    model(|algorithm| {
        let store = store();
        assert!(decide(&store, algorithm, &[b"a"], 2));
        assert_eq!(race(&store, algorithm, [&[b"a"], &[b"a"]], 2), 1);
    });
}

#[test]
fn loom_two_decisions_under_a_carried_limit_admit_one() {
    // With room for its counter, and without.
    for pool_bytes in [1_024, 0] {
        model_within(2, move |algorithm| {
            let store = store_with(LimitRegistry::with_max_unpinned(0), pool_bytes);
            assert_eq!(race(&store, algorithm, [&[b"a"], &[b"a"]], 1), 1);
            assert_eq!(store.memory_use().carried_limits, u64::from(pool_bytes > 0));
        });
    }
}

#[test]
fn loom_single_and_multi_check_decisions_on_one_key_admit_one() {
    model(|algorithm| {
        let store = store();
        assert!(decide(&store, algorithm, &[b"a", b"b"], 2));
        assert_eq!(race(&store, algorithm, [&[b"a"], &[b"a", b"b"]], 2), 1);
        assert!(!decide(&store, algorithm, &[b"a"], 2));
    });
}

#[test]
fn loom_checks_in_opposite_order_do_not_deadlock_and_admit_one() {
    model(|algorithm| {
        let store = store();
        assert!(decide(&store, algorithm, &[b"a", b"b"], 2));
        assert_eq!(race(&store, algorithm, [&[b"a", b"b"], &[b"b", b"a"]], 2), 1);
        assert!(!decide(&store, algorithm, &[b"a"], 2));
        assert!(!decide(&store, algorithm, &[b"b"], 2), "both were charged together");
    });
}

#[test]
fn loom_peek_during_decision_sees_all_or_none_of_its_charges() {
    model(|algorithm| {
        let store = store();
        assert!(decide(&store, algorithm, &[b"a", b"b"], 2));
        let decider = {
            let store = Arc::clone(&store);
            thread::spawn(move || decide(&store, algorithm, &[b"a", b"b"], 2))
        };
        let limit = limit(algorithm, 2, 60);
        let both = [&b"b"[..], b"a"]
            .map(|client| Check::new(CounterKey::new(RuleId::named("rule"), client), &limit));
        let seen = store.peek_now(&both, NOW);
        assert_eq!(seen.outcomes[0].remaining, seen.outcomes[1].remaining);
        assert!(decider.join().expect("the decider does not panic"));
    });
}

const LONG_AGO: Timestamp = Timestamp::from_secs(1_790_000_000);

fn limit(algorithm: Algorithm, requests: u64, seconds: u64) -> Limit {
    Limit::new(algorithm, Spec::new(requests, TimeSpan::from_secs(seconds))).expect("a valid limit")
}

/// A limit of one unit. Words of its successor, read as its own, would admit another unit.
fn once(algorithm: Algorithm) -> Limit {
    let spec = match algorithm {
        Algorithm::TokenBucket => Spec { burst: Some(1), ..Spec::new(7, TimeSpan::from_secs(60)) },
        _ => Spec::new(1, TimeSpan::from_secs(60)),
    };
    Limit::new(algorithm, spec).expect("a valid limit")
}

/// Another limit that gets the same number once `limit` has released it.
fn successor(limit_before: &Limit) -> Limit {
    let number = LimitRegistry::presumed_number(limit_before);
    let mut others = (2..).map(|requests| limit(limit_before.algorithm(), requests, 3_600));
    others.find(|other| LimitRegistry::presumed_number(other) == number).expect("numbers are few")
}

/// Runs a compare-and-swap on the word of `a` that always fails. Loom remembers only the last access of each atomic: without
/// this, the first load of a lock would hide from loom that a sweep conflicts with reads of the word.
fn conflict_with_reads(store: &MemoryStore, limit: &Limit) {
    let hash = store.hasher.hash(&CounterKey::new(RuleId::named("rule"), b"a"));
    let tag = cache_line::Tag::new(hash, 0, LimitRegistry::presumed_number(limit));
    if let Some(seen) = store.table.line(store.table.home(hash)).snapshot(tag) {
        assert!(!seen.replace(u64::MAX, u64::MAX));
    }
}

fn charge(store: &MemoryStore, limit: &Limit, now: Timestamp) -> tidegate_core::Outcome {
    let check = Check::new(CounterKey::new(RuleId::named("rule"), b"a"), limit);
    store.decide_now(&[check], now).expect("there are few limits").outcomes[0]
}

#[test]
fn loom_sweep_during_decision_on_live_counter_loses_no_charge() {
    model(|algorithm| {
        let store = store();
        assert!(decide(&store, algorithm, &[b"a"], 2));
        let sweeper = {
            let store = Arc::clone(&store);
            thread::spawn(move || store.table.reclaim_all(NOW))
        };
        assert!(decide(&store, algorithm, &[b"a"], 2));
        sweeper.join().expect("the sweeper does not panic");
        assert!(!decide(&store, algorithm, &[b"a"], 2));
    });
}

#[test]
fn loom_sweep_during_decision_on_expired_counter_loses_no_charge() {
    model(|algorithm| {
        let (store, once) = (store(), once(algorithm));
        // The lock of a line includes its first word, so use another slot.
        assert!(decide(&store, algorithm, &[b"first"], 1));
        assert!(charge(&store, &once, LONG_AGO).verdict.is_pass());
        let sweeper = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                conflict_with_reads(&store, &once);
                store.table.reclaim_all(NOW);
            })
        };
        assert!(charge(&store, &once, NOW).verdict.is_pass());
        sweeper.join().expect("the sweeper does not panic");
        assert!(!charge(&store, &once, NOW).verdict.is_pass());
    });
}

/// One thread decides under the old limit while another sweeps, assigns the number to a new limit and decides under that.
/// Each must see the other's charge under its own limit, in one order or the other.
#[test]
fn loom_number_reused_during_decision_is_never_read_under_the_old_limit() {
    model_within(2, |algorithm| {
        let (store, old) = (store(), once(algorithm));
        let new = successor(&old);
        assert!(charge(&store, &old, LONG_AGO).verdict.is_pass());
        let reuser = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                conflict_with_reads(&store, &old);
                store.table.reclaim_all(NOW);
                charge(&store, &new, NOW)
            })
        };
        let under_old = charge(&store, &old, NOW);
        let under_new = reuser.join().expect("the reuser does not panic");
        assert!(under_new.verdict.is_pass());
        let spent_before = u64::from(under_old.verdict.is_pass());
        assert_eq!(under_new.remaining, new.capacity() - 1 - spent_before, "{under_old:?}");
    });
}
