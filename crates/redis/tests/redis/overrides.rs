//! Overrides hold wherever the counter of their rule is, and come back if Redis loses them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    Algorithm, Check, Coordination, CounterKey, Limit, RuleId, Spec, StoreFailureMode, TimeSpan, Timestamp,
};
use tidegate_redis::{Endpoint, RedisConfig, RedisStore};
use tidegate_store::{Clock, Override, RuleSettings, Store, SystemClock};
use tidegate_testkit::process::RedisServer;
use tidegate_testkit::wait::within;

const RULE: RuleId = RuleId::named("rule");
const HOUR: TimeSpan = TimeSpan::from_secs(3_600);

fn open(server: &RedisServer, coordination: Coordination) -> RedisStore {
    // Longer than by default: a busy machine must not cause a fallback.
    let timeout = Duration::from_secs(2);
    let config = RedisConfig { timeout, ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap()) };
    let store = RedisStore::new(config, Arc::new(SystemClock::new()));
    use_coordination(&store, coordination);
    store
}

fn use_coordination(store: &RedisStore, coordination: Coordination) {
    store.apply_settings(&[RuleSettings {
        rule: RULE,
        coordination,
        on_store_failure: StoreFailureMode::Local,
    }]);
}

fn limit(requests: u64) -> Limit {
    Limit::new(Algorithm::TokenBucket, Spec::new(requests, HOUR)).unwrap()
}

fn replacement(requests: u64) -> Override {
    Override { limit: limit(requests), until: SystemClock::new().now() + HOUR }
}

/// Waits until this limit is in force.
async fn limit_becomes(store: &RedisStore, check: Check<'_>, requests: u64, what: &str) {
    let becomes = async {
        while store.peek(&[check], Timestamp::ZERO).await.unwrap().outcomes[0].limit != requests {
            tokio::task::yield_now().await;
        }
    };
    within(what, becomes).await;
}

#[tokio::test]
async fn override_holds_after_the_coordination_of_its_rule_has_changed() {
    let server = RedisServer::start();
    let store = open(&server, Coordination::Central);
    let own = limit(60);
    let check = Check::new(CounterKey::new(RULE, b"client"), &own);
    store.override_limit(check.key, Some(replacement(9)), Timestamp::ZERO).await.unwrap();
    for coordination in [Coordination::Lease, Coordination::Sync, Coordination::Static, Coordination::Central]
    {
        use_coordination(&store, coordination);
        limit_becomes(&store, check, 9, coordination.name()).await;
    }
    use_coordination(&store, Coordination::Lease);
    limit_becomes(&store, check, 9, "lease").await;
    store.override_limit(check.key, None, Timestamp::ZERO).await.unwrap();
    for coordination in [Coordination::Central, Coordination::Sync, Coordination::Static] {
        use_coordination(&store, coordination);
        limit_becomes(&store, check, 60, "the end of the override").await;
    }
}

#[tokio::test]
async fn override_that_redis_has_lost_with_its_counter_comes_back() {
    let server = RedisServer::start();
    for coordination in [Coordination::Central, Coordination::Lease] {
        let store = open(&server, coordination);
        let own = limit(60);
        let check = Check::new(CounterKey::new(RULE, coordination.name().as_bytes()), &own);
        for requests in [9, 99] {
            store.override_limit(check.key, Some(replacement(requests)), Timestamp::ZERO).await.unwrap();
            limit_becomes(&store, check, requests, "the override").await;
            server.command(&["FLUSHALL"]);
            limit_becomes(&store, check, requests, "the override again").await;
            let decision = store.decide(&[check], Timestamp::ZERO).await.unwrap();
            assert_eq!(decision.outcomes[0].limit, requests, "{coordination:?}");
            store.reset(check.key).await.unwrap();
        }
    }
}

#[tokio::test]
async fn override_made_while_redis_fails_holds_when_it_is_back_and_ends_only_with_redis() {
    let mut server = RedisServer::start();
    for coordination in [Coordination::Central, Coordination::Lease] {
        let store = open(&server, coordination);
        let own = limit(60);
        let check = Check::new(CounterKey::new(RULE, coordination.name().as_bytes()), &own);
        store.ping().await.unwrap();
        server.kill();
        store.override_limit(check.key, Some(replacement(9)), Timestamp::ZERO).await.unwrap();
        server.restart();
        limit_becomes(&store, check, 9, "the override").await;
        server.kill();
        assert!(store.override_limit(check.key, None, Timestamp::ZERO).await.is_err(), "{coordination:?}");
        server.restart();
        limit_becomes(&store, check, 9, "the override again").await;
        store.override_limit(check.key, None, Timestamp::ZERO).await.unwrap();
        limit_becomes(&store, check, 60, "its end").await;
    }
}
