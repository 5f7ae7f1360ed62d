//! The end of a node: what it has not spent is available to the others, and what it has spent is known to them.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    Algorithm, Check, Coordination, CounterKey, Limit, RuleId, Spec, StoreFailureMode, TimeSpan, Timestamp,
};
use tidegate_redis::{Endpoint, RedisConfig, RedisStore};
use tidegate_store::{RuleSettings, Store, SystemClock};
use tidegate_testkit::process::RedisServer;
use tidegate_testkit::wait::within;

const RULE: RuleId = RuleId::named("default");
/// Far longer than the tests take.
const DAY: TimeSpan = TimeSpan::from_secs(86_400);
const REQUESTS: u64 = 100;
const SHARED: [Algorithm; 3] = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter];

fn open(server: &RedisServer, coordination: Coordination) -> RedisStore {
    let config = RedisConfig {
        nodes: NonZeroU32::new(2).unwrap(),
        // A busy machine must not decide the outcome of a test.
        timeout: Duration::from_secs(5),
        // Only the stop pushes counts.
        sync_interval: Duration::from_hours(1),
        ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
    };
    let store = RedisStore::new(config, Arc::new(SystemClock::new()));
    store.apply_settings(&[RuleSettings {
        rule: RULE,
        coordination,
        on_store_failure: StoreFailureMode::Local,
    }]);
    store
}

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new(algorithm, Spec::new(REQUESTS, DAY)).unwrap()
}

async fn admitted(store: &RedisStore, check: Check<'_>, requests: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += u64::from(store.decide(&[check], Timestamp::ZERO).await.unwrap().passes());
    }
    admitted
}

#[tokio::test]
async fn closed_store_leaves_all_unspent_units_of_leases_to_the_other() {
    let server = RedisServer::start();
    let stores = [(); 2].map(|()| open(&server, Coordination::Lease));
    let client = |algorithm: Algorithm, spent: u64| format!("{algorithm} {spent}");
    // After 45 requests, one for the next block may be on its way.
    let cases: Vec<_> =
        SHARED.iter().flat_map(|algorithm| [1, 45].map(|spent| (*algorithm, spent))).collect();
    for (algorithm, spent) in &cases {
        let (limit, client) = (limit(*algorithm), client(*algorithm, *spent));
        let check = Check::new(CounterKey::new(RULE, client.as_bytes()), &limit);
        assert_eq!(admitted(&stores[0], check, *spent).await, *spent, "{client}");
    }
    stores[0].close().await;
    assert_eq!(stores[0].report().lease.units, 0);
    for (algorithm, spent) in &cases {
        let (limit, client) = (limit(*algorithm), client(*algorithm, *spent));
        let check = Check::new(CounterKey::new(RULE, client.as_bytes()), &limit);
        assert_eq!(admitted(&stores[1], check, REQUESTS + 10).await, REQUESTS - spent, "{client}");
    }
}

#[tokio::test]
async fn closed_store_returns_units_of_more_counters_than_fit_in_a_call() {
    let server = RedisServer::start();
    let store = open(&server, Coordination::Lease);
    let limit = limit(Algorithm::FixedWindow);
    for client in 0..600_u32 {
        let client = client.to_be_bytes();
        assert_eq!(admitted(&store, Check::new(CounterKey::new(RULE, &client), &limit), 1).await, 1);
    }
    assert_eq!(store.report().lease.counters, 600);
    store.close().await;
    assert_eq!(store.report().lease.counters, 0);
}

#[tokio::test]
async fn closed_store_has_pushed_its_counts() {
    let server = RedisServer::start();
    let stores = [(); 2].map(|()| open(&server, Coordination::Sync));
    for algorithm in SHARED {
        let limit = limit(algorithm);
        let check = Check::new(CounterKey::new(RULE, algorithm.name().as_bytes()), &limit);
        assert_eq!(admitted(&stores[0], check, 30).await, 30, "{algorithm}");
    }
    stores[0].close().await;
    for algorithm in SHARED {
        let limit = limit(algorithm);
        let check = Check::new(CounterKey::new(RULE, algorithm.name().as_bytes()), &limit);
        assert_eq!(admitted(&stores[1], check, REQUESTS).await, REQUESTS - 30, "{algorithm}");
    }
}

#[tokio::test]
async fn close_ends_while_redis_hangs() {
    let server = RedisServer::start();
    let store = open(&server, Coordination::Lease);
    let limit = limit(Algorithm::FixedWindow);
    let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
    assert_eq!(admitted(&store, check, 1).await, 1);
    server.stop();
    within("the end of the store", store.close()).await;
    server.resume();
}
