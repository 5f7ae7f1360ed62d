//! The central store against a real redis-server.

use std::sync::Arc;

use redis::AsyncCommands;
use tidegate_core::{Algorithm, Check, Cost, CounterKey, Limit, RuleId, Spec, TimeSpan, Timestamp, Verdict};
use tidegate_redis::{CentralStore, Endpoint, RedisConfig, TimeSource};
use tidegate_store::conformance::Suite;
use tidegate_store::{Clock, Override, Store, StoreError, SystemClock};
use tidegate_testkit::process::RedisServer;

const RULE: RuleId = RuleId::named("default");

fn bucket(requests: u64, window: TimeSpan) -> Limit {
    Limit::new(Algorithm::TokenBucket, Spec::new(requests, window)).unwrap()
}

fn connect(server: &RedisServer, time: TimeSource) -> CentralStore {
    let config = RedisConfig { time, ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap()) };
    CentralStore::new(config, Arc::new(SystemClock::new()))
}

async fn raw(server: &RedisServer) -> redis::aio::MultiplexedConnection {
    redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

#[tokio::test]
async fn central_store_passes_the_conformance_suite() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Caller);
    let suite = Suite { algorithms: Algorithm::ALL, seed: fastrand::u64(..), traces: 20, steps: 400 };
    let coverage = suite.run(&store).await;
    println!("seed {}: {coverage:?}", suite.seed);
}

#[tokio::test]
async fn key_ttl_is_at_least_twice_the_recovery_time() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server);
    let limits = [bucket(1, TimeSpan::from_secs(3_600)), bucket(1, TimeSpan::from_secs(10))];
    for (limit, client) in limits.iter().zip([&b"slow"[..], b"fast"]) {
        let check = Check::new(CounterKey::new(RULE, client), limit);
        assert!(store.decide(&[check], Timestamp::ZERO).await.unwrap().passes());
    }
    let day = Override { limit: limits[0], until: SystemClock::new().now() + TimeSpan::from_secs(86_400) };
    store.override_limit(CounterKey::new(RULE, b"special"), Some(day), Timestamp::ZERO).await.unwrap();

    let mut raw = raw(&server).await;
    let keys: Vec<String> = raw.keys("*").await.unwrap();
    let mut lives = Vec::new();
    for key in &keys {
        lives.push(raw.pttl::<_, i64>(key).await.unwrap());
    }
    lives.sort_unstable();
    assert_eq!(lives.len(), 3, "one key per client: {keys:?}");
    assert!((10_000..=20_000).contains(&lives[0]), "{lives:?}");
    assert!((7_100_000..=7_200_000).contains(&lives[1]), "{lives:?}");
    assert!((86_400_000..=86_520_000).contains(&lives[2]), "{lives:?}");
}

#[tokio::test]
async fn server_time_source_ignores_the_callers_time() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server);
    let limit = bucket(1, TimeSpan::from_secs(3_600));
    let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
    assert!(store.decide(&[check], Timestamp::MAX).await.unwrap().passes());
    let rejected = store.decide(&[check], Timestamp::MAX).await.unwrap();
    assert!(matches!(rejected.verdict, Verdict::NotUntil { .. }));
    let now = SystemClock::new().now();
    let apart = rejected.at.since(now).max(now.since(rejected.at));
    assert!(apart < TimeSpan::from_secs(60), "the clocks differ by {apart:?}");
}

#[tokio::test]
async fn rejected_decision_writes_nothing() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server);
    let limit = bucket(2, TimeSpan::from_secs(3_600));
    let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
    assert_eq!(
        store.decide(&[check.cost(Cost::new(3))], Timestamp::ZERO).await.unwrap().verdict,
        Verdict::Never
    );
    store.peek(&[check], Timestamp::ZERO).await.unwrap();
    let keys: Vec<String> = raw(&server).await.keys("*").await.unwrap();
    assert_eq!(keys, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_admit_exactly_the_limit() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Caller);
    let (narrow, wide) = (bucket(500, TimeSpan::from_secs(3_600)), bucket(800, TimeSpan::from_secs(3_600)));
    let now = Timestamp::from_secs(1_700_000_000);
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let checks = [
                    Check::new(CounterKey::new(RuleId::named("wide"), b"client"), &wide),
                    Check::new(CounterKey::new(RuleId::named("narrow"), b"client"), &narrow),
                ];
                let mut passed = 0;
                for _ in 0..50 {
                    passed += u64::from(store.decide(&checks, now).await.unwrap().passes());
                }
                passed
            })
        })
        .collect();
    let mut passed = 0;
    for task in tasks {
        passed += task.await.unwrap();
    }
    assert_eq!(passed, 500);
    let left = Check::new(CounterKey::new(RuleId::named("wide"), b"client"), &wide).cost(Cost::ZERO);
    assert_eq!(store.peek(&[left], now).await.unwrap().outcomes[0].remaining, 300);
}

#[tokio::test]
async fn flushed_script_cache_is_reloaded() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server);
    let limit = bucket(5, TimeSpan::from_secs(3_600));
    let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
    store.decide(&[check], Timestamp::ZERO).await.unwrap();
    let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut raw(&server).await).await.unwrap();
    let decision = store.decide(&[check], Timestamp::ZERO).await.unwrap();
    assert_eq!(decision.outcomes[0].remaining, 3);
}

#[tokio::test]
async fn stopped_server_is_an_unavailable_error() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server);
    drop(server);
    let limit = bucket(5, TimeSpan::from_secs(60));
    let error =
        store.decide(&[Check::new(CounterKey::new(RULE, b"a"), &limit)], Timestamp::ZERO).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
#[ignore = "long: cargo xtask scorecard equivalence"]
async fn long_equivalence() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Caller);
    let suite = Suite { algorithms: Algorithm::ALL, seed: fastrand::u64(..), traces: 2_000, steps: 500 };
    println!("redis, central: seed {}", suite.seed);
    println!("redis, central: {:?}, 0 mismatches", suite.run(&store).await);
}
