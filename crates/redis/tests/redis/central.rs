//! The central store against a real redis-server.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use redis::AsyncCommands;
use tidegate_core::{Algorithm, Check, Cost, CounterKey, Limit, RuleId, Spec, TimeSpan, Timestamp, Verdict};
use tidegate_redis::{CentralStore, Endpoint, RedisConfig, TimeSource};
use tidegate_store::conformance::Suite;
use tidegate_store::{Clock, Override, Store, StoreError, SystemClock};
use tidegate_testkit::process::{RedisCluster, RedisServer};

use crate::{assert_all_keys_expire, raw};

const RULE: RuleId = RuleId::named("default");

fn bucket(requests: u64, window: TimeSpan) -> Limit {
    Limit::new(Algorithm::TokenBucket, Spec::new(requests, window)).unwrap()
}

/// Waits long for a busy machine: these tests are not about timeouts.
fn store(url: &str, time: TimeSource) -> CentralStore {
    let timeout = Duration::from_secs(5);
    let config = RedisConfig { time, timeout, ..RedisConfig::new(Endpoint::parse(url).unwrap()) };
    CentralStore::new(config, Arc::new(SystemClock::new()))
}

/// A store that is connected and has loaded its script: before that, operations may be sent again in another order.
pub(crate) async fn connect(server: &RedisServer, time: TimeSource) -> CentralStore {
    let store = store(&server.url(), time);
    let limit = bucket(1, TimeSpan::from_secs(1));
    store.connected().await;
    store.peek(&[Check::new(CounterKey::new(RULE, b""), &limit)], Timestamp::ZERO).await.unwrap();
    store
}

#[tokio::test]
async fn central_store_passes_the_conformance_suite() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Caller).await;
    let suite = Suite { algorithms: Algorithm::ALL, seed: fastrand::u64(..), traces: 20, steps: 400 };
    let coverage = suite.run(&store).await;
    println!("seed {}: {coverage:?}", suite.seed);
    assert!(assert_all_keys_expire(&mut raw(&server).await).await > 0);
}

#[tokio::test]
async fn central_store_on_a_cluster_passes_the_conformance_suite() {
    let cluster = RedisCluster::start();
    let store = store(&cluster.url(), TimeSource::Caller);
    store.connected().await;
    let suite = Suite { algorithms: Algorithm::ALL, seed: fastrand::u64(..), traces: 8, steps: 400 };
    println!("seed {}", suite.seed);
    suite.run(&store).await;
    for node in &cluster.nodes[..3] {
        assert!(assert_all_keys_expire(&mut raw(node).await).await > 0);
    }
}

#[tokio::test]
async fn key_ttl_is_at_least_twice_the_recovery_time() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server).await;
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
    let store = connect(&server, TimeSource::Server).await;
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
    let store = connect(&server, TimeSource::Server).await;
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
    let store = connect(&server, TimeSource::Caller).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_a_cluster_admit_exactly_the_limit_and_take_back_the_rest() {
    let cluster = RedisCluster::start();
    let store = store(&cluster.url(), TimeSource::Caller);
    store.connected().await;
    let now = Timestamp::from_secs(1_700_000_000);
    for &algorithm in &[Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let limit =
            |requests| Limit::new(algorithm, Spec::new(requests, TimeSpan::from_secs(3_600))).unwrap();
        let (narrow, wide) = (limit(100), limit(1_000));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move {
                    // The counters of different clients are in different slots.
                    let rule = RuleId::named(algorithm.name());
                    let checks = [
                        Check::new(CounterKey::new(rule, b"wide"), &wide),
                        Check::new(CounterKey::new(rule, b"narrow"), &narrow),
                    ];
                    let mut passed = 0;
                    for _ in 0..20 {
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
        assert_eq!(passed, 100, "{algorithm}");
        let key = CounterKey::new(RuleId::named(algorithm.name()), b"wide");
        let left = store.peek(&[Check::new(key, &wide).cost(Cost::ZERO)], now).await.unwrap();
        assert_eq!(left.outcomes[0].remaining, 900, "{algorithm}");
    }
}

#[tokio::test]
async fn flushed_script_cache_is_reloaded() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server).await;
    let limit = bucket(5, TimeSpan::from_secs(3_600));
    let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
    store.decide(&[check], Timestamp::ZERO).await.unwrap();
    let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut raw(&server).await).await.unwrap();
    let decision = store.decide(&[check], Timestamp::ZERO).await.unwrap();
    assert_eq!(decision.outcomes[0].remaining, 3);
}

#[tokio::test]
async fn entry_of_a_newer_format_is_an_error_and_stays_as_it_is() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server).await;
    let limit = bucket(5, TimeSpan::from_secs(3_600));
    let (newer, current) = (CounterKey::new(RULE, b"newer"), CounterKey::new(RULE, b"current"));
    store.decide(&[Check::new(newer, &limit)], Timestamp::ZERO).await.unwrap();
    let mut raw = raw(&server).await;
    let keys: Vec<Vec<u8>> = raw.keys("*").await.unwrap();
    let written: Vec<u8> = raw.get(&keys[0]).await.unwrap();
    assert_eq!(written[0] >> 4, 1, "the version");
    let future = [&[0x20], &written[1..]].concat();
    let _: () = raw.set_ex(&keys[0], &future, 1_000).await.unwrap();

    let both = [Check::new(current, &limit), Check::new(newer, &limit)];
    for checks in [&both[1..], &both[..]] {
        let error = store.decide(checks, Timestamp::ZERO).await.unwrap_err();
        assert!(error.to_string().contains("a newer version wrote this counter"), "{error}");
        assert!(store.peek(checks, Timestamp::ZERO).await.is_err());
    }
    assert!(store.reset(newer).await.is_err());
    assert!(store.override_limit(newer, None, Timestamp::ZERO).await.is_err());
    assert_eq!(raw.get::<_, Vec<u8>>(&keys[0]).await.unwrap(), future);
    let left = store.decide(&both[..1], Timestamp::ZERO).await.unwrap();
    assert_eq!(left.outcomes[0].remaining, 4, "the failed decision charged nothing");
}

#[tokio::test]
async fn malformed_entry_fails_only_its_own_decisions_until_a_reset_removes_it() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server).await;
    let mut raw = raw(&server).await;
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(*algorithm, Spec::new(5, TimeSpan::from_secs(3_600))).unwrap();
        let keys = [b"first", b"other"].map(|client| CounterKey::new(RULE, client));
        let [first, other] = keys.map(|key| [Check::new(key, &limit)]);
        store.decide(&first, Timestamp::ZERO).await.unwrap();
        let written: Vec<Vec<u8>> = raw.keys("*}????????").await.unwrap();
        let entry: Vec<u8> = raw.get(&written[0]).await.unwrap();
        for malformed in [&entry[..entry.len() - 1], &entry[..1], b"\x10malformed", b"\x1f"] {
            let _: () = raw.set_ex(&written[0], malformed, 1_000).await.unwrap();
            let (failed, decided) =
                tokio::join!(store.decide(&first, Timestamp::ZERO), store.decide(&other, Timestamp::ZERO));
            assert!(matches!(failed, Err(StoreError::Protocol { .. })), "{algorithm}: {failed:?}");
            assert!(decided.is_ok(), "{algorithm}: {decided:?}");
            assert_eq!(raw.get::<_, Vec<u8>>(&written[0]).await.unwrap(), malformed);
        }
        let newer = b"\xf0newer";
        let _: () = raw.set_ex(&written[0], newer, 1_000).await.unwrap();
        assert!(store.reset(keys[0]).await.is_err(), "{algorithm}: a newer format is left alone");
        assert_eq!(raw.get::<_, Vec<u8>>(&written[0]).await.unwrap(), newer);
        let _: () = raw.set_ex(&written[0], &entry[..1], 1_000).await.unwrap();
        store.reset(keys[0]).await.unwrap();
        let decision = store.decide(&first, Timestamp::ZERO).await.unwrap();
        assert!(decision.passes(), "{algorithm}: {decision:?}");
        redis::cmd("FLUSHALL").query_async::<()>(&mut raw).await.unwrap();
    }
}

#[tokio::test]
async fn sliding_log_of_many_admissions_stays_short() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Caller).await;
    let limit = Limit::new(Algorithm::SlidingLog, Spec::new(100, TimeSpan::from_secs(1))).unwrap();
    let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
    let mut now = Timestamp::from_secs(1_700_000_000);
    for _ in 0..1_000 {
        now = now + TimeSpan::from_millis(11);
        assert!(store.decide(&[check], now).await.unwrap().passes());
    }
    let mut raw = raw(&server).await;
    assert_eq!(assert_all_keys_expire(&mut raw).await, 2, "the entry and its cells");
    let keys: Vec<Vec<u8>> = raw.keys("*").await.unwrap();
    for key in keys {
        let bytes: usize = raw.strlen(&key).await.unwrap();
        assert!(bytes <= 14 * 3 * 100, "{bytes} bytes for at most 91 admissions of 14 bytes");
    }
}

#[tokio::test]
async fn sliding_log_whose_cells_were_evicted_counts_only_what_is_left() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Caller).await;
    let limit = Limit::new(Algorithm::SlidingLog, Spec::new(10, TimeSpan::from_secs(60))).unwrap();
    let check = Check::new(CounterKey::new(RULE, b"client"), &limit);
    let start = Timestamp::from_secs(1_700_000_000);
    let later = |number: u64| start + TimeSpan::from_millis(number);
    for (charged, refunds) in [(10, false), (4, false), (4, true)] {
        store.reset(check.key).await.unwrap();
        for number in 0..charged {
            assert!(store.decide(&[check], later(number)).await.unwrap().passes());
        }
        let mut raw = raw(&server).await;
        let keys: Vec<Vec<u8>> = raw.keys("*1").await.unwrap();
        let removed: usize = raw.del(keys).await.unwrap();
        assert_eq!(removed, 1);
        let decision = store.decide(&[check], later(100)).await.unwrap();
        assert_eq!((decision.passes(), decision.outcomes[0].remaining), (true, 9));
        if refunds {
            store.refund(&decision.refunds(&[check]), later(101)).await.unwrap();
            assert_eq!(store.peek(&[check], later(102)).await.unwrap().outcomes[0].remaining, 10);
        }
    }
}

#[tokio::test]
async fn stopped_server_is_an_unavailable_error() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server).await;
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
    let store = connect(&server, TimeSource::Caller).await;
    let suite = Suite { algorithms: Algorithm::ALL, seed: fastrand::u64(..), traces: 2_000, steps: 500 };
    println!("redis, central: seed {}", suite.seed);
    println!("redis, central: {:?}, 0 mismatches", suite.run(&store).await);
}

#[tokio::test]
#[ignore = "long: cargo xtask scorecard equivalence"]
async fn long_equivalence_on_a_cluster() {
    let cluster = RedisCluster::start();
    let store = store(&cluster.url(), TimeSource::Caller);
    store.connected().await;
    let suite = Suite { algorithms: Algorithm::ALL, seed: fastrand::u64(..), traces: 400, steps: 500 };
    println!("redis, central on a cluster: seed {}", suite.seed);
    println!("redis, central on a cluster: {:?}, 0 mismatches", suite.run(&store).await);
}

/// The script calls that a server has run.
async fn script_calls(server: &RedisServer) -> u64 {
    let info: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut raw(server).await).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// A request that departs is decided, and the store says when the next one may depart: in the same call, if both are sent at once.
#[tokio::test]
async fn departure_from_a_queue_takes_at_most_two_calls() {
    let server = RedisServer::start();
    let store = connect(&server, TimeSource::Server).await;
    let limit = bucket(1_000, TimeSpan::from_secs(86_400));
    let checks = [Check::new(CounterKey::new(RULE, b"queue"), &limit)];
    let before = script_calls(&server).await;
    for _ in 0..100 {
        let decision = store.decide(&checks, Timestamp::ZERO);
        let (decided, peeked) = join(decision, store.peek(&checks, Timestamp::ZERO)).await;
        let [decided, peeked] = [decided, peeked].map(|decision| decision.unwrap().outcomes[0]);
        assert!(decided.verdict.is_pass() && peeked.remaining >= decided.remaining);
    }
    let calls = script_calls(&server).await - before;
    assert!(calls <= 200, "{calls} calls for 100 departures");
}
