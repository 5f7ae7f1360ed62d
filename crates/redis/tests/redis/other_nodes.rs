//! What a node does to a counter holds on the others, and what it says about it is true.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    Algorithm, Check, Coordination, Cost, CounterKey, Limit, RuleId, Spec, StoreFailureMode, TimeSpan,
    Timestamp,
};
use tidegate_redis::{Endpoint, RedisConfig, RedisStore};
use tidegate_store::{Clock, RuleSettings, Store, SystemClock};
use tidegate_testkit::process::RedisServer;
use tidegate_testkit::wait::within;

use crate::SkewedClock;

const CENTRAL: RuleId = RuleId::named("central");
const LEASED: RuleId = RuleId::named("leased");
const SYNCED: RuleId = RuleId::named("synced");
const STATIC: RuleId = RuleId::named("static");
const LEASABLE: [Algorithm; 3] = [Algorithm::FixedWindow, Algorithm::SlidingCounter, Algorithm::TokenBucket];

fn open(server: &RedisServer, clock: Arc<dyn Clock>) -> RedisStore {
    // Longer than by default: a busy machine must not cause a fallback.
    let timeout = Duration::from_secs(2);
    let config = RedisConfig { timeout, ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap()) };
    let store = RedisStore::new(config, clock);
    let settings =
        |(rule, coordination)| RuleSettings { rule, coordination, on_store_failure: StoreFailureMode::Local };
    let rules = [(LEASED, Coordination::Lease), (SYNCED, Coordination::Sync), (STATIC, Coordination::Static)];
    store.apply_settings(&rules.map(settings));
    store
}

fn two_nodes(server: &RedisServer) -> [RedisStore; 2] {
    [(); 2].map(|()| open(server, Arc::new(SystemClock::new())))
}

fn limit(algorithm: Algorithm, requests: u64) -> Limit {
    Limit::new(algorithm, Spec::new(requests, TimeSpan::from_secs(86_400))).unwrap()
}

/// A counter for each algorithm.
fn check(rule: RuleId, limit: &Limit) -> Check<'_> {
    Check::new(CounterKey::new(rule, limit.algorithm().name().as_bytes()), limit)
}

async fn admits(store: &RedisStore, check: Check<'_>) -> bool {
    store.decide(&[check], Timestamp::ZERO).await.unwrap().passes()
}

async fn admits_soon(store: &RedisStore, check: Check<'_>, why: &str) {
    let admitted = async {
        while !admits(store, check).await {
            tokio::task::yield_now().await;
        }
    };
    within(why, admitted).await;
}

#[tokio::test]
async fn refund_of_units_that_another_node_has_not_reported_is_made() {
    let server = RedisServer::start();
    let [here, there] = two_nodes(&server);
    // The other node is asked through its subscription.
    let known = limit(Algorithm::FixedWindow, 1);
    while admits(&here, check(CENTRAL, &known)).await {}
    there.reset(check(CENTRAL, &known).key).await.unwrap();
    admits_soon(&here, check(CENTRAL, &known), "the subscription").await;
    for algorithm in LEASABLE {
        let limit = limit(algorithm, 100);
        let checks = [check(LEASED, &limit).cost(Cost::new(60))];
        let decision = here.decide(&checks, Timestamp::ZERO).await.unwrap();
        assert!(decision.passes(), "{algorithm}");
        assert!(there.refund(&decision.refunds(&checks), Timestamp::ZERO).await.unwrap(), "{algorithm}");
        // What may have drained of a bucket is not given back.
        assert!(admits(&there, checks[0].cost(Cost::new(59))).await, "{algorithm}: the units are free again");
    }
}

#[tokio::test]
async fn refund_of_units_that_the_counter_does_not_contain_says_so() {
    let server = RedisServer::start();
    let [here, there] = two_nodes(&server);
    let limit = limit(Algorithm::FixedWindow, 100);
    for rule in [CENTRAL, LEASED, SYNCED, STATIC] {
        let checks = [check(rule, &limit)];
        let decision = here.decide(&checks, Timestamp::ZERO).await.unwrap();
        let refunds = decision.refunds(&checks);
        if rule == STATIC {
            assert!(!there.refund(&refunds, Timestamp::ZERO).await.unwrap(), "another node has charged them");
        }
        assert!(here.refund(&refunds, Timestamp::ZERO).await.unwrap(), "{rule:?}");
        assert!(!here.refund(&refunds, Timestamp::ZERO).await.unwrap(), "{rule:?}: a second time");
    }
}

#[tokio::test]
async fn reset_of_a_leased_counter_is_seen_by_the_next_peek() {
    let server = RedisServer::start();
    let [store, _] = two_nodes(&server);
    for algorithm in LEASABLE {
        let limit = limit(algorithm, 100);
        let check = check(LEASED, &limit);
        assert!(admits(&store, check).await, "{algorithm}");
        store.reset(check.key).await.unwrap();
        let left = store.peek(&[check], Timestamp::ZERO).await.unwrap().outcomes[0].remaining;
        assert_eq!(left, 100, "{algorithm}");
    }
}

#[tokio::test]
async fn reset_on_another_node_ends_rejections_by_a_lease_without_messages() {
    let server = RedisServer::start();
    let [here, there] = two_nodes(&server);
    for algorithm in LEASABLE {
        let limit = limit(algorithm, 10);
        let check = check(LEASED, &limit);
        while admits(&there, check).await {}
        server.command(&["ACL", "SETUSER", "default", "resetchannels"]);
        here.reset(check.key).await.unwrap();
        admits_soon(&there, check, "the reset").await;
    }
}

#[tokio::test]
async fn time_of_a_charge_is_that_of_redis_unless_the_node_counts_alone() {
    let server = RedisServer::start();
    let hour = TimeSpan::from_secs(3_600);
    let clock = Arc::new(SkewedClock::new(hour, TimeSpan::ZERO));
    let store = open(&server, Arc::clone(&clock) as Arc<dyn Clock>);
    let learned = async {
        for rule in [CENTRAL, LEASED, SYNCED] {
            let is_known = || {
                store.charge_time(rule, clock.now()) < SystemClock::new().now() + TimeSpan::from_secs(1_800)
            };
            while !is_known() {
                tokio::task::yield_now().await;
            }
        }
    };
    within("the time of Redis", learned).await;
    assert!(store.charge_time(STATIC, clock.now()) > SystemClock::new().now() + TimeSpan::from_secs(1_800));
}
