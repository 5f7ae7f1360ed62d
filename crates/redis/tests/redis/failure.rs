//! The composed store when a part of a decision fails, is rejected or is refunded.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use redis::AsyncCommands;
use tidegate_core::{
    Algorithm, Check, Coordination, Cost, CounterKey, Decision, Limit, Refund, RuleId, Spec,
    StoreFailureMode, TimeSpan, Timestamp,
};
use tidegate_redis::{Endpoint, RedisConfig, RedisStore, TimeSource};
use tidegate_store::{Clock, RuleSettings, Store, SystemClock};
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{RedisCluster, RedisServer};
use tidegate_testkit::wait::{eventually, within};

use crate::raw;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn open(url: &str, rules: &[(&str, Coordination, StoreFailureMode)]) -> RedisStore {
    let config =
        RedisConfig { timeout: Duration::from_secs(2), ..RedisConfig::new(Endpoint::parse(url).unwrap()) };
    let store = RedisStore::new(config, Arc::new(SystemClock::new()));
    let settings = |(name, coordination, on_store_failure): &(&str, _, _)| RuleSettings {
        rule: RuleId::named(name),
        coordination: *coordination,
        on_store_failure: *on_store_failure,
    };
    store.apply_settings(&rules.iter().map(settings).collect::<Vec<_>>());
    store
}

fn limit(algorithm: Algorithm, requests: u64) -> Limit {
    Limit::new(algorithm, Spec::new(requests, TimeSpan::from_secs(3_600))).unwrap()
}

fn check<'a>(rule: &str, client: &'a [u8], limit: &'a Limit) -> Check<'a> {
    Check::new(CounterKey::new(RuleId::named(rule), client), limit)
}

#[tokio::test]
async fn request_that_a_failure_mode_allowed_has_no_refund() {
    let (central, lease, sync) = (Coordination::Central, Coordination::Lease, Coordination::Sync);
    let allow = StoreFailureMode::Allow;
    let rules = [("central", central, allow), ("lease", lease, allow), ("sync", sync, allow)];
    let local = ("static", Coordination::Static, StoreFailureMode::Local);
    let store = open(&format!("redis://{}", free_address()), &[rules[0], rules[1], rules[2], local]);
    let limit = limit(Algorithm::TokenBucket, 5);
    for (rule, ..) in rules {
        let checks = [check(rule, b"client", &limit), check("static", b"client", &limit)];
        let alone = store.decide(&checks[..1], NOW).await.unwrap();
        assert!(alone.passes());
        assert_eq!(alone.refunds(&checks[..1]).len(), 0, "{rule} charged nothing");
        let both = store.decide(&checks, NOW).await.unwrap();
        let refunds = both.refunds(&checks);
        assert_eq!((refunds.len(), refunds[0].key, refunds[0].charged), (1, checks[1].key, NOW), "{rule}");
    }
}

#[tokio::test]
async fn refund_of_a_mixed_decision_reaches_each_counter_at_its_own_time() {
    let server = RedisServer::start();
    let rules = [("static", Coordination::Static, StoreFailureMode::Local)];
    let store = open(&server.url(), &rules);
    for algorithm in [Algorithm::SlidingLog, Algorithm::LeakyBucket, Algorithm::FixedWindow] {
        let limit = limit(algorithm, 5);
        let checks = [check("static", b"client", &limit), check("central", b"client", &limit)];
        let unused = store.peek(&checks, NOW).await.unwrap();
        // The node's time is far from the server's.
        let decision = store.decide(&checks, NOW).await.unwrap();
        assert!(decision.passes());
        store.refund(&decision.refunds(&checks), NOW).await.unwrap();
        let left = store.peek(&checks, NOW).await.unwrap();
        let remaining = |decision: &Decision| {
            decision.outcomes.iter().map(|outcome| outcome.remaining).collect::<Vec<_>>()
        };
        assert_eq!(remaining(&left), remaining(&unused), "{algorithm}");
    }
}

/// Whether the server of the client's counters works.
#[tokio::test]
async fn refund_during_an_outage_of_units_that_redis_has_charged_is_an_error() {
    let mut server = RedisServer::start();
    let store = open(&server.url(), &[]);
    let now = || SystemClock::new().now();
    let limit = limit(Algorithm::FixedWindow, 100);
    let [by_redis, by_share] =
        [b"redis".as_slice(), b"share"].map(|client| check("central", client, &limit).cost(Cost::new(5)));
    let connected = async {
        while store.peek(&[by_redis], now()).now_or_never().is_some() {
            tokio::task::yield_now().await;
        }
    };
    within("a connection", connected).await;
    assert!(store.decide(&[by_redis], now()).await.unwrap().passes());
    assert_eq!(store.report().fallback_decisions.local, 0);
    server.kill();
    assert!(store.decide(&[by_share], now()).await.unwrap().passes());
    assert_eq!(store.report().fallback_decisions.local, 1);
    // The caller does not know when the units were charged: the store says its present, whose clock may be another.
    let refund = async |check: &Check<'_>, cost| {
        let (key, limit, now) = (check.key, check.limit, now());
        let charged = store.peek(&[*check], now).await.unwrap().at;
        store.refund(&[Refund { key, limit, cost: Cost::new(cost), charged }], now).await
    };
    assert!(refund(&by_redis, 5).await.is_err(), "Redis has charged the units");
    assert!(refund(&by_share, 6).await.is_err(), "more than this node has admitted");
    refund(&by_share, 5).await.unwrap();
    assert!(refund(&by_share, 5).await.is_err(), "they are given back once");
}

async fn is_served(store: &RedisStore, client: &[u8]) -> bool {
    let limit = limit(Algorithm::TokenBucket, 1_000);
    store.decide(&[check("probe", client, &limit)], NOW).await.is_ok()
}

async fn find_client(store: &RedisStore, is_wanted: bool) -> Vec<u8> {
    for client in 0..200_u8 {
        if is_served(store, &[client]).await == is_wanted {
            return vec![client];
        }
    }
    panic!("no client found");
}

#[tokio::test]
async fn rejection_by_one_slot_stands_although_another_fails() {
    let mut cluster = RedisCluster::start();
    let rules = [
        ("probe", Coordination::Central, StoreFailureMode::Deny),
        ("narrow", Coordination::Central, StoreFailureMode::Allow),
        ("global", Coordination::Central, StoreFailureMode::Allow),
        ("strict", Coordination::Central, StoreFailureMode::Deny),
    ];
    let store = open(&cluster.url(), &rules);
    assert!(is_served(&store, b"client").await);
    cluster.nodes[0].kill();
    let (here, gone) = (find_client(&store, true).await, find_client(&store, false).await);
    let (narrow, wide) = (limit(Algorithm::TokenBucket, 3), limit(Algorithm::TokenBucket, 1_000));
    let strict = [check("narrow", &here, &narrow), check("strict", &gone, &wide)];
    for _ in 0..5 {
        // Until the replica takes over, the rule denies, and the units of the other slot are given back.
        if let Ok(decision) = store.decide(&strict, NOW).await {
            store.refund(&decision.refunds(&strict), NOW).await.unwrap();
        }
    }
    let checks = [check("narrow", &here, &narrow), check("global", &gone, &wide)];
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += u32::from(store.decide(&checks, NOW).await.unwrap().passes());
    }
    assert_eq!(admitted, 3);
    assert!(store.report().fallback_decisions.allow > 0, "the server of the other slot was away");
}

#[tokio::test]
async fn dropped_decision_gives_local_units_back() {
    let server = RedisServer::start();
    let store = open(&server.url(), &[("static", Coordination::Static, StoreFailureMode::Local)]);
    let limit = limit(Algorithm::TokenBucket, 5);
    let checks = [check("static", b"client", &limit), check("central", b"client", &limit)];
    let mut dropped = 0;
    for _ in 0..20 {
        match store.decide(&checks, NOW).now_or_never() {
            None => dropped += 1,
            // The machine was busy for longer than the timeout, so the fallback decides at once.
            Some(decision) => {
                store.refund(&decision.unwrap().refunds(&checks), NOW).await.unwrap();
            }
        }
    }
    assert!(dropped > 0, "a decision waits for Redis");
    assert_eq!(store.peek(&checks[..1], NOW).await.unwrap().outcomes[0].remaining, 5);
}

#[tokio::test]
async fn dropped_decision_over_several_slots_leaves_no_charge() {
    let cluster = RedisCluster::start();
    let store = open(&cluster.url(), &[]);
    let wide = limit(Algorithm::TokenBucket, 1_000);
    let checks = [check("client", b"client", &wide), check("all", b"", &wide)];
    let all = &checks[1..];
    assert_eq!(store.peek(all, NOW).await.unwrap().outcomes[0].remaining, 1_000);
    let unused = || async {
        while store.peek(all, NOW).await.unwrap().outcomes[0].remaining < 1_000 {
            tokio::task::yield_now().await;
        }
    };
    let mut dropped = 0;
    for _ in 0..20 {
        // A server that is not connected yet is not asked: the fallback peeks at once.
        let connected = async {
            while store.peek(&checks, NOW).now_or_never().is_some() {
                tokio::task::yield_now().await;
            }
        };
        within("a connection to both servers", connected).await;
        let mut decision = Box::pin(store.decide(&checks, NOW));
        if let Some(decided) = (&mut decision).now_or_never() {
            // Redis has answered before this thread could wait.
            store.refund(&decided.unwrap().refunds(&checks), NOW).await.unwrap();
            within("the refund", unused()).await;
            continue;
        }
        dropped += 1;
        let charged = async {
            while store.peek(all, NOW).await.unwrap().outcomes[0].remaining == 1_000 {
                tokio::task::yield_now().await;
            }
        };
        within("the charge", charged).await;
        drop(decision);
        within("the cancellation", unused()).await;
    }
    assert!(dropped > 0, "a decision waits for Redis");
}

/// Marks the only counter in Redis as written by a newer version.
async fn make_newer(server: &RedisServer) {
    let mut raw = raw(server).await;
    let keys: Vec<Vec<u8>> = raw.keys("*").await.unwrap();
    for key in keys {
        let Ok(written) = raw.get::<_, Vec<u8>>(&key).await else { continue };
        if written.first().is_some_and(|first| first >> 4 == 1) {
            let newer = [&[0x20], &written[1..]].concat();
            return raw.set_ex(&key, newer, 1_000).await.unwrap();
        }
    }
    panic!("no counter found");
}

#[tokio::test]
async fn error_reply_does_not_lift_a_limit_that_an_outage_lifts() {
    let server = RedisServer::start();
    let store = open(&server.url(), &[("allow", Coordination::Central, StoreFailureMode::Allow)]);
    let limit = limit(Algorithm::TokenBucket, 10);
    let checks = [check("allow", b"client", &limit)];
    assert!(store.decide(&checks, NOW).await.unwrap().passes());
    make_newer(&server).await;
    let mut admitted = 0;
    for _ in 0..20 {
        admitted += u32::from(store.decide(&checks, NOW).await.unwrap().passes());
    }
    let decisions = store.report().fallback_decisions;
    assert_eq!((admitted, decisions.local, decisions.allow), (5, 20, 0), "the share of the node");
}

#[tokio::test]
async fn server_that_refuses_every_call_does_not_lift_a_limit_that_an_outage_lifts() {
    let coordinations = [("central", Coordination::Central), ("lease", Coordination::Lease)];
    let rules = coordinations.map(|(rule, coordination)| (rule, coordination, StoreFailureMode::Allow));
    let limit = limit(Algorithm::TokenBucket, 10);
    let server = RedisServer::start();
    let store = open(&server.url(), &rules);
    let decide = async |rule, client| {
        store.decide(&[check(rule, client, &limit)], NOW).await.unwrap();
    };
    decide("central", b"known").await;
    // A replica whose primary is away: it rejects everything that writes.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    for (rule, _) in rules.map(|(rule, coordination, _)| (rule, coordination)) {
        decide(rule, b"new").await;
    }
    eventually("an open breaker", || store.report().link.servers_open == 1).await;
    for (rule, ..) in rules {
        decide(rule, b"newer").await;
    }
    let decisions = store.report().fallback_decisions;
    assert_eq!((decisions.local, decisions.allow), (4, 0), "refused, and rejected by the breaker");
    drop(server);
    eventually("an outage", || store.report().link.connection_errors > 0).await;
    within("an outage", async {
        while store.report().fallback_decisions.allow == 0 {
            decide("central", b"away").await;
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn failed_request_of_a_batch_leaves_the_others_to_redis() {
    let server = RedisServer::start();
    let deny = ("deny", Coordination::Central, StoreFailureMode::Deny);
    let store = open(&server.url(), &[deny]);
    let limit = limit(Algorithm::TokenBucket, 2);
    let newer = [check("local", b"newer", &limit)];
    assert!(store.decide(&newer, NOW).await.unwrap().passes());
    make_newer(&server).await;
    let (spent, fresh) = ([check("local", b"spent", &limit)], [check("local", b"fresh", &limit)]);
    for _ in 0..2 {
        assert!(store.decide(&spent, NOW).await.unwrap().passes());
    }
    let mut decisions = Vec::new();
    store.decide_batch(&[&spent, &newer, &fresh], NOW, &mut decisions).await.unwrap();
    let passes: Vec<bool> = decisions.iter().map(Decision::passes).collect();
    assert_eq!((passes, store.report().fallback_decisions.local), (vec![false, true, true], 1));
    assert_eq!(store.peek(&fresh, NOW).await.unwrap().outcomes[0].remaining, 1);
}

#[tokio::test]
async fn batch_of_which_a_request_fails_is_refunded() {
    let server = RedisServer::start();
    let rules = ["deny", "other"].map(|rule| (rule, Coordination::Central, StoreFailureMode::Deny));
    let store = open(&server.url(), &rules);
    let central = crate::central::connect(&server, TimeSource::Server).await;
    let limit = limit(Algorithm::TokenBucket, 5);
    let (newer, fresh) = ([check("deny", b"newer", &limit)], [check("other", b"fresh", &limit)]);
    assert!(store.decide(&newer, NOW).await.unwrap().passes());
    make_newer(&server).await;
    let mut decisions = Vec::new();
    for batch in [[&fresh, &newer], [&newer, &fresh]] {
        let batch = batch.map(|checks| &checks[..]);
        assert!(store.decide_batch(&batch, NOW, &mut decisions).await.is_err());
        assert!(central.decide_batch(&batch, NOW, &mut decisions).await.is_err());
    }
    assert_eq!((decisions.len(), store.peek(&fresh, NOW).await.unwrap().outcomes[0].remaining), (0, 5));
}

#[tokio::test]
async fn refund_of_leased_units_on_one_node_ends_the_rejection_on_the_other() {
    let server = RedisServer::start();
    let rules = [("lease", Coordination::Lease, StoreFailureMode::Local)];
    let (first, second) = (open(&server.url(), &rules), open(&server.url(), &rules));
    let limit = limit(Algorithm::FixedWindow, 10);
    let checks = [check("lease", b"client", &limit)];
    let mut admitted = Vec::new();
    let rejected = async {
        // The units of a node's share are returned within seconds.
        loop {
            let decision = first.decide(&checks, NOW).await.unwrap();
            if decision.passes() {
                admitted.push(decision);
            } else if !second.decide(&checks, NOW).await.unwrap().passes() && admitted.len() >= 9 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    within("the rejection", rejected).await;
    for decision in &admitted[..5] {
        first.refund(&decision.refunds(&checks), NOW).await.unwrap();
    }
    let freed = async {
        while !second.decide(&checks, NOW).await.unwrap().passes() {
            tokio::task::yield_now().await;
        }
    };
    within("the end of the rejection", freed).await;
}
