//! Limits whose algorithm the store's coordination does not support: those of no policy, which nothing has checked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    Algorithm, Check, Coordination, Cost, CounterKey, CounterState, Decision, Ledger, Limit, Outcome, RuleId,
    Spec, StoreFailureMode, TimeSpan, Timestamp, decide,
};
use tidegate_redis::{Endpoint, RedisConfig, RedisStore, TimeSource};
use tidegate_store::{RuleSettings, Store, SystemClock};
use tidegate_testkit::process::RedisServer;
use tidegate_testkit::wait::{eventually, within};

use crate::{assert_all_keys_expire, raw};

const RULE: RuleId = RuleId::named("envoy");
const OTHER: RuleId = RuleId::named("other");
const HOUR: TimeSpan = TimeSpan::from_secs(3_600);
const UNSUPPORTED: [Algorithm; 2] = [Algorithm::LeakyBucket, Algorithm::SlidingLog];
const LOCAL: [Coordination; 2] = [Coordination::Lease, Coordination::Sync];

/// A node whose limits without settings have this coordination.
fn node(server: &RedisServer, coordination: Coordination, time: TimeSource) -> RedisStore {
    let config = RedisConfig {
        coordination,
        time,
        // A busy machine must not cause a fallback.
        timeout: Duration::from_secs(2),
        max_memory: 1 << 20,
        ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
    };
    RedisStore::new(config, Arc::new(SystemClock::new()))
}

/// No wait is too long for a leaky bucket, as in Envoy's configurations: so all algorithms admit `requests` at once.
fn spec(algorithm: Algorithm, requests: u64, window: TimeSpan) -> Spec {
    let max_wait = (algorithm == Algorithm::LeakyBucket).then_some(window);
    Spec { max_wait, ..Spec::new(requests, window) }
}

fn limit(algorithm: Algorithm, requests: u64) -> Limit {
    Limit::new(algorithm, spec(algorithm, requests, HOUR)).unwrap()
}

fn check(rule: RuleId, limit: &Limit) -> Check<'_> {
    Check::new(CounterKey::new(rule, b"client"), limit)
}

async fn admits(store: &RedisStore, check: Check<'_>) -> bool {
    store.decide(&[check], Timestamp::ZERO).await.unwrap().passes()
}

async fn remaining(store: &RedisStore, check: Check<'_>) -> u64 {
    store.peek(&[check], Timestamp::ZERO).await.unwrap().outcomes[0].remaining
}

async fn admitted(stores: &[RedisStore; 2], check: Check<'_>, count: usize) -> u64 {
    let mut admitted = 0;
    for turn in 0..count {
        admitted += u64::from(admits(&stores[turn % 2], check).await);
    }
    admitted
}

#[tokio::test]
async fn every_algorithm_is_decided_under_every_coordination() {
    let server = RedisServer::start();
    for coordination in Coordination::ALL {
        let stores = [(); 2].map(|()| node(&server, coordination, TimeSource::Server));
        for algorithm in Algorithm::ALL {
            let limit = limit(*algorithm, 6);
            let client = format!("{} {algorithm}", coordination.name());
            let check = Check::new(CounterKey::new(RULE, client.as_bytes()), &limit);
            let admitted = admitted(&stores, check, 16).await;
            let expected = match coordination {
                Coordination::Lease | Coordination::Sync if UNSUPPORTED.contains(algorithm) => 6..=6,
                Coordination::Central => 6..=6,
                // One node may have leased what the other one needs.
                Coordination::Lease => 1..=6,
                Coordination::Sync => 6..=12,
                // Both believe to be the only node.
                Coordination::Static => 12..=12,
            };
            assert!(expected.contains(&admitted), "{client}: {admitted}");
        }
    }
    assert!(assert_all_keys_expire(&mut raw(&server).await).await > 0);
}

#[tokio::test]
async fn unsupported_limit_is_peeked_refunded_and_reset_where_it_is_counted() {
    let server = RedisServer::start();
    for coordination in LOCAL {
        let [here, there] = [(); 2].map(|()| node(&server, coordination, TimeSource::Server));
        for algorithm in UNSUPPORTED {
            let limit = limit(algorithm, 3);
            let check = check(RULE, &limit);
            let text = format!("{} {algorithm}", coordination.name());
            let first = here.decide(&[check], Timestamp::ZERO).await.unwrap();
            assert_eq!(remaining(&there, check).await, 2, "{text}");
            here.refund(&first.refunds(&[check]), Timestamp::ZERO).await.unwrap();
            assert_eq!(remaining(&there, check).await, 3, "{text}");
            while admits(&there, check).await {}
            // The refund drops cached rejections when Redis publishes it, which may be after the first of them.
            let cached = async {
                loop {
                    assert!(!admits(&here, check).await, "{text}");
                    if let Some(known) = here.try_decide(&[check], Timestamp::ZERO) {
                        return known.unwrap().outcomes[0];
                    }
                }
            };
            let known = within(&text, cached).await;
            assert_eq!((known.limit, known.remaining), (3, 0), "{text}");
            there.reset(check.key).await.unwrap();
            let freed = async {
                while !admits(&here, check).await {
                    tokio::task::yield_now().await;
                }
            };
            within(&text, freed).await;
            assert_eq!(remaining(&there, check).await, 2, "{text}");
            here.reset(check.key).await.unwrap();
        }
    }
}

#[tokio::test]
async fn decision_over_supported_and_unsupported_limits_charges_all_or_none() {
    let server = RedisServer::start();
    for coordination in LOCAL {
        let store = node(&server, coordination, TimeSource::Server);
        for algorithm in UNSUPPORTED {
            let text = format!("{} {algorithm}", coordination.name());
            let (wide, narrow) = (limit(Algorithm::FixedWindow, 10), limit(algorithm, 3));
            let client = text.as_bytes();
            let both = [(OTHER, &wide), (RULE, &narrow)]
                .map(|(rule, limit)| Check::new(CounterKey::new(rule, client), limit));
            let mut decisions = Vec::new();
            // A batch of different coordinations, and of requests that have several.
            let batch: [&[Check<'_>]; 5] = [&both[1..], &both, &both[..1], &both, &both];
            store.decide_batch(&batch, Timestamp::ZERO, &mut decisions).await.unwrap();
            let passes: Vec<_> = decisions.iter().map(Decision::passes).collect();
            assert_eq!(passes, [true, true, true, true, false], "{text}");
            assert!(!store.decide(&both, Timestamp::ZERO).await.unwrap().passes(), "{text}");
            let mut alone = 0;
            for _ in 0..10 {
                alone += u32::from(admits(&store, both[0]).await);
            }
            assert_eq!(alone, 7, "{text}: the rejected requests were charged nothing");
        }
    }
}

#[tokio::test]
async fn coordination_of_a_rule_that_supports_the_limit_is_kept() {
    let server = RedisServer::start();
    let store = node(&server, Coordination::Lease, TimeSource::Server);
    let on_store_failure = StoreFailureMode::Local;
    store.apply_settings(&[RuleSettings {
        rule: OTHER,
        coordination: Coordination::Static,
        on_store_failure,
    }]);
    let leaky = limit(Algorithm::LeakyBucket, 3);
    let bucket = limit(Algorithm::TokenBucket, 3);
    for rule in [OTHER, RULE] {
        assert!(admits(&store, check(rule, &leaky)).await);
        assert_eq!(store.report().lease.grants, 0);
    }
    assert!(admits(&store, check(RULE, &bucket)).await);
    // Once the store has subscribed to changes, it may ask again.
    assert!(store.report().lease.grants >= 1);
}

#[tokio::test]
async fn unsupported_limit_that_was_decided_locally_is_charged_when_redis_returns() {
    for coordination in LOCAL {
        let mut server = RedisServer::start();
        let store = node(&server, coordination, TimeSource::Server);
        let limit = limit(Algorithm::SlidingLog, 20);
        assert!(admits(&store, check(RULE, &limit)).await);
        server.kill();
        let now = tidegate_store::Clock::now(&SystemClock::new());
        for _ in 0..4 {
            assert!(store.decide(&[check(RULE, &limit)], now).await.unwrap().passes());
        }
        assert!(store.report().is_in_fallback);
        server.restart();
        eventually("normal operation", || !store.report().is_in_fallback).await;
        assert_eq!(store.report().fallback_units_charged, 4, "{}", coordination.name());
        assert_eq!(remaining(&store, check(RULE, &limit)).await, 16, "the server lost the first unit");
    }
}

/// The counters of a decision in one map, as in the core.
struct Counters<'a> {
    states: &'a mut BTreeMap<Vec<u8>, CounterState>,
    checks: &'a [Check<'a>],
    now: Timestamp,
}

impl Ledger for Counters<'_> {
    fn evaluate(&self, position: usize, cost: Cost) -> Outcome {
        let Check { key, limit, .. } = self.checks[position];
        let state = self.states.get(key.client).cloned().unwrap_or_default();
        limit.evaluate(&state, self.now, cost)
    }

    fn charge(&mut self, position: usize, cost: Cost) {
        let Check { key, limit, .. } = self.checks[position];
        let state = self.states.entry(key.client.to_vec()).or_default();
        limit.charge(state, self.now, cost);
    }
}

#[tokio::test]
async fn decisions_over_unsupported_limits_equal_those_of_the_core() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = RedisServer::start();
    let limits =
        UNSUPPORTED.map(|algorithm| Limit::new(algorithm, Spec::new(6, TimeSpan::from_secs(20))).unwrap());
    for (turn, coordination) in (0_u64..).zip(LOCAL) {
        let store = node(&server, coordination, TimeSource::Caller);
        let mut states = BTreeMap::new();
        // The counters of the turn before are unused by then.
        let mut now = Timestamp::from_secs(1_700_000_000 + turn * 1_000_000);
        let (mut passed, mut rejected) = (0, 0);
        for step in 0..400 {
            now = now + TimeSpan::from_millis(random.u64(0..1_500));
            let checks: Vec<Check<'_>> = (0..random.usize(1..4))
                .map(|_| {
                    let client = random.usize(0..4);
                    let key = CounterKey::new(RULE, [b"a", b"b", b"c", b"d"][client]);
                    Check::new(key, &limits[client % 2]).cost(Cost::new(random.u64(0..5)))
                })
                .collect();
            let expected = decide(&checks, now, &mut Counters { states: &mut states, checks: &checks, now });
            let got = store.decide(&checks, now).await.unwrap();
            assert_eq!(got, expected, "seed {seed}, {}, step {step}: {checks:?}", coordination.name());
            if got.passes() { passed += 1 } else { rejected += 1 }
        }
        assert!(passed > 50 && rejected > 50, "{passed} passed, {rejected} rejected");
    }
}
