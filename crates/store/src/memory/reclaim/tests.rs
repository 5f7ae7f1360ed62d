#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use fastrand::Rng;
use pollster::block_on;
use tidegate_core::{Algorithm, Check, Cost, CounterKey, Decision, Refund, RuleId, Spec};

use super::*;
use crate::conformance::oracle::Oracle;
use crate::memory::limit_registry::RetainedLimits;
use crate::{MemoryStore, Override, Store, StoreError};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const RULES: [RuleId; 4] = [RuleId::named("a"), RuleId::named("b"), RuleId::named("c"), RuleId::named("d")];
const CLIENTS: [&[u8]; 10] =
    [b"alice", b"bob", b"carol", b"dave", b"erin", b"frank", b"grace", b"heidi", b"ivan", b"judy"];
/// Far more limits than the 30 numbers of unit tests.
const WINDOWS: [u64; 4] = [1, 60, 3_600, YEAR];
const YEAR: u64 = 365 * 86_400;

fn limit(algorithm: Algorithm, requests: u64, seconds: u64) -> Limit {
    Limit::new(algorithm, Spec::new(requests, TimeSpan::from_secs(seconds))).expect("a valid limit")
}

fn window(requests: u64, seconds: u64) -> Limit {
    limit(Algorithm::FixedWindow, requests, seconds)
}

fn store() -> MemoryStore {
    MemoryStore::with_cap(64 << 10)
}

fn decide(store: &MemoryStore, client: &[u8], limit: &Limit, now: Timestamp) -> Decision {
    block_on(store.decide(&[Check::new(CounterKey::new(RULES[0], client), limit)], now))
        .expect("a free number")
}

#[test]
fn reload_with_fresh_limit_100_000_times_is_accepted() {
    let store = MemoryStore::with_cap(0);
    let mut retained = RetainedLimits::default();
    for n in 0_u64..100_000 {
        let (now, fresh) = (START + TimeSpan::from_millis(100 * n), window(n + 1, 10));
        retained = store.retain_limits(&[fresh], now).expect("a free number");
        let client = CLIENTS[usize::try_from(n % 10).unwrap()];
        assert_eq!(decide(&store, client, &fresh, now).outcomes[0].limit, n + 1);
    }
    drop(retained);
}

#[test]
fn live_counter_of_a_released_limit_keeps_its_number() {
    let (store, year) = (store(), window(5, YEAR));
    for _ in 0..5 {
        assert!(decide(&store, b"alice", &year, START).passes());
    }
    let number = store.table.limits.find(&year);
    for n in 0..1_000 {
        let now = START + TimeSpan::from_secs(60 * n);
        assert!(decide(&store, b"bob", &window(n + 1, 1), now).passes());
    }
    let later = START + TimeSpan::from_secs(60_000);
    store.table.reclaim_all(later);
    assert_eq!(store.table.limits.find(&year), number);
    assert!(!decide(&store, b"alice", &year, later).passes(), "what was spent stays spent");
    store.table.reclaim_all(START + TimeSpan::from_secs(2 * YEAR));
    assert_eq!(store.table.limits.find(&year), None);
}

#[test]
fn counter_expired_less_than_a_minute_ago_is_not_swept() {
    let (store, once) = (store(), window(1, 60));
    assert!(decide(&store, b"alice", &once, START).passes());
    store.table.reclaim_all(START + TimeSpan::from_secs(100));
    assert!(!decide(&store, b"alice", &once, START + TimeSpan::from_secs(45)).passes(), "time went back");
}

#[test]
fn carried_limits_beyond_half_of_the_numbers_leave_the_others_for_policies_and_overrides() {
    let store = MemoryStore::with_cap(1 << 20);
    for n in 0..4 * MAX_LIMITS as u64 {
        assert!(decide(&store, &n.to_be_bytes(), &window(n + 1, 3_600), START).passes());
    }
    let used = store.memory_use();
    assert_eq!((used.limits_in_use, used.carried_limits), (15, 105), "{used:?}");
    let policy: Vec<_> = (1..15).map(|n| window(1_000 + n, 3_600)).collect();
    let _retained = store.retain_limits(&policy, START).unwrap();
    let (key, limit) = (CounterKey::new(RULES[0], b"alice"), window(2_000, 3_600));
    let replacement = Override { limit, until: Timestamp::MAX };
    block_on(store.override_limit(key, Some(replacement), START)).unwrap();
    let one_more = store.retain_limits(&[window(3_000, 3_600)], START);
    assert!(matches!(one_more, Err(StoreError::TooManyLimits { new: 1, in_use: MAX_LIMITS, .. })));
    for n in 0..4 * MAX_LIMITS as u64 {
        let left = decide(&store, &n.to_be_bytes(), &window(n + 1, 3_600), START).outcomes[0].remaining;
        assert_eq!(left, (n + 1).saturating_sub(2), "what was spent stays spent");
    }
    let later = START + TimeSpan::from_secs(7_200);
    assert!(store.retain_limits(&[window(3_000, 3_600)], later).is_ok(), "all counters have expired");
}

#[test]
fn shared_counter_keeps_its_number_until_it_expires() {
    // Sixteen lines, one limit, more clients than slots.
    let (store, hour) = (MemoryStore::with_cap(0), window(1, 3_600));
    for client in 0_u64..1_000 {
        decide(&store, &client.to_be_bytes(), &hour, START);
    }
    assert!(store.memory_use().overflowed > 0);
    // Only shared counters are left.
    for client in 0_u64..1_000 {
        block_on(store.reset(CounterKey::new(RULES[0], &client.to_be_bytes()))).unwrap();
    }
    store.table.reclaim_all(START);
    assert_eq!(store.memory_use().limits_in_use, 1);
    store.table.reclaim_all(START + TimeSpan::from_secs(7_200));
    assert_eq!(store.memory_use().limits_in_use, 0);
    let pool = store.memory_use().pool_bytes;
    for n in 0..1_000 {
        let now = START + TimeSpan::from_secs(7_200 + 7_200 * n);
        for client in 0_u64..100 {
            decide(&store, &client.to_be_bytes(), &window(n + 2, 3_600), now);
        }
    }
    assert!(store.memory_use().pool_bytes <= pool * LIMITS as u64, "cells are reused");
}

#[test]
fn override_ended_or_replaced_releases_its_limit() {
    let store = store();
    for n in 0_u64..1_000 {
        let key = CounterKey::new(RULES[0], CLIENTS[usize::try_from(n % 10).unwrap()]);
        let replacement = Override { limit: window(n + 1, 60), until: Timestamp::MAX };
        block_on(store.override_limit(key, Some(replacement), START)).unwrap();
        if n % 3 == 0 {
            block_on(store.override_limit(key, None, START)).unwrap();
        }
    }
    for n in 0_u64..1_000 {
        // Each client has one that soon expires.
        let (client, now) = (n.to_be_bytes(), START + TimeSpan::from_secs(10 * n));
        let replacement = Override { limit: window(n + 2_000, 60), until: now + TimeSpan::from_secs(5) };
        block_on(store.override_limit(CounterKey::new(RULES[0], &client), Some(replacement), now)).unwrap();
    }
    let used = store.memory_use();
    assert!(used.limits_in_use <= used.limits_max, "{used:?}");
}

/// A policy: a limit for each rule.
type Policy = [Limit; 4];

/// A store, the oracle it is compared with, and the policy of both.
struct Simulation {
    rng: Rng,
    store: MemoryStore,
    oracle: Oracle,
    policy: Policy,
    retained: RetainedLimits,
    /// The previous policy: requests in progress still use it.
    before: Policy,
    now: Timestamp,
    reloads: usize,
    carries_limits: bool,
}

impl Simulation {
    fn new(seed: u64, carries_limits: bool) -> Self {
        let (store, mut rng) = (store(), Rng::with_seed(seed));
        let policy = random_policy(&mut rng);
        let retained = store.retain_limits(&policy, START).unwrap();
        let oracle = Oracle::default();
        let (before, now) = (policy, START);
        Self { rng, store, oracle, policy, retained, before, now, reloads: 0, carries_limits }
    }

    fn step(&mut self) {
        match self.rng.u32(0..20) {
            0 => self.reload(),
            1 => self.advance_time(),
            2 => self.override_one(),
            3 => {
                let key = self.key();
                block_on(self.store.reset(key)).unwrap();
                self.oracle.reset(key);
            }
            4 => self.store.table.reclaim_all(self.now),
            _ => self.decide(),
        }
    }

    fn key(&mut self) -> CounterKey<'static> {
        CounterKey::new(self.rng.choice(RULES).unwrap(), self.rng.choice(CLIENTS).unwrap())
    }

    fn advance_time(&mut self) {
        let seconds = match self.rng.u32(0..40) {
            0 => 2 * YEAR,
            1..4 => 3_600,
            _ => *self.rng.choice(&[0, 1, 59, 60, 61]).unwrap(),
        };
        self.now = self.now + TimeSpan::from_secs(seconds) + TimeSpan::from_millis(self.rng.u64(0..1_000));
    }

    fn reload(&mut self) {
        let policy = random_policy(&mut self.rng);
        // Rejected if live counters need too many numbers.
        if let Ok(retained) = self.store.retain_limits(&policy, self.now) {
            self.before = std::mem::replace(&mut self.policy, policy);
            self.retained = retained;
            self.reloads += 1;
        }
    }

    fn override_one(&mut self) {
        let key = self.key();
        let until = self.now + TimeSpan::from_secs(self.rng.u64(0..200));
        let limit = random_limit(&mut self.rng);
        let replacement = self.rng.bool().then_some(Override { limit, until });
        if block_on(self.store.override_limit(key, replacement, self.now)).is_ok() {
            self.oracle.override_limit(key, replacement, self.now);
        }
    }

    fn decide(&mut self) {
        // A few requests began under the previous policy, or carry limits of their own.
        let policy = match self.rng.u32(0..8) {
            0 => self.before,
            1..4 if self.carries_limits => random_policy(&mut self.rng),
            _ => self.policy,
        };
        let client = self.rng.choice(CLIENTS).unwrap();
        let count = self.rng.usize(1..=3);
        let checks: Vec<_> = (0..count)
            .map(|_| {
                let rule = self.rng.usize(0..RULES.len());
                let cost = Cost::new(self.rng.u64(0..3));
                Check::new(CounterKey::new(RULES[rule], client), &policy[rule]).cost(cost)
            })
            .collect();
        if self.rng.u32(0..6) == 0 {
            let peeked = block_on(self.store.peek(&checks, self.now)).unwrap();
            assert_eq!(peeked, self.oracle.peek(&checks, self.now));
            return;
        }
        let decided = block_on(self.store.decide(&checks, self.now)).unwrap();
        let expected = self.oracle.decide(&checks, self.now);
        assert_eq!(decided, expected, "left: the memory store; right: the oracle");
        if self.rng.u32(0..4) == 0 {
            let refunds: Vec<Refund<'_>> = expected.refunds(&checks).into_iter().collect();
            block_on(self.store.refund(&refunds, self.now)).unwrap();
            self.oracle.refund(&refunds, self.now);
        }
    }
}

fn random_limit(rng: &mut Rng) -> Limit {
    let algorithm = rng.choice(Algorithm::ALL).copied().unwrap();
    limit(algorithm, rng.u64(1..12), rng.choice(WINDOWS).unwrap())
}

fn random_policy(rng: &mut Rng) -> Policy {
    std::array::from_fn(|_| random_limit(rng))
}

#[test]
fn decisions_across_reloads_overrides_and_sweeps_equal_the_oracle() {
    let seed = fastrand::u64(..);
    for trace in 0..60 {
        println!("seed {}", seed.wrapping_add(trace));
        let mut simulation = Simulation::new(seed.wrapping_add(trace), false);
        for _ in 0..1_500 {
            simulation.step();
        }
        assert!(simulation.reloads * 4 > LIMITS, "numbers were reused");
        drop(simulation.retained);
    }
}

/// Law: any trace with more distinct limits than numbers decides like the oracle.
#[test]
fn decisions_with_more_carried_limits_than_numbers_equal_the_oracle() {
    let (seed, mut carried) = (fastrand::u64(..), 0);
    for trace in 0..30 {
        println!("seed {}", seed.wrapping_add(trace));
        let mut simulation = Simulation::new(seed.wrapping_add(trace), true);
        for _ in 0..1_500 {
            simulation.step();
            carried = carried.max(simulation.store.memory_use().carried_limits);
        }
        drop(simulation.retained);
    }
    assert!(carried > 10, "at most {carried} limits had no number");
}
