//! Copies of counters on several nodes that exchange counts through a real server.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use redis::AsyncCommands;
use tidegate_core::{
    Algorithm, Check, Cost, CounterKey, CounterState, Decision, Limit, Role, RuleId, Spec, TimeSpan,
    Timestamp,
};
use tidegate_redis::{Endpoint, RedisConfig, SyncStore, TimeSource};
use tidegate_store::{Clock, ManualClock, MemoryStore, Override, Store, StoreError, SystemClock};
use tidegate_testkit::process::RedisServer;

const RULE: RuleId = RuleId::named("default");
const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const ALGORITHMS: &[Algorithm] = &[Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter];
const NODES: u32 = 3;

fn config(server: &RedisServer, time: TimeSource) -> RedisConfig {
    RedisConfig {
        time,
        nodes: NonZeroU32::new(NODES).unwrap(),
        max_memory: 4 << 20,
        // The machine may be busy: these tests do not measure time.
        timeout: Duration::from_secs(5),
        ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
    }
}

fn node(server: &RedisServer) -> SyncStore {
    SyncStore::connect(config(server, TimeSource::Caller), Arc::new(SystemClock::new()))
}

fn limit(algorithm: Algorithm, requests: u64) -> Limit {
    Limit::new(algorithm, Spec::new(requests, TimeSpan::from_secs(60))).unwrap()
}

fn client(limit: &Limit) -> Check<'_> {
    Check::new(CounterKey::new(RULE, b"client"), limit)
}

async fn spend(store: &SyncStore, limit: &Limit, now: Timestamp, cost: u64) -> bool {
    store.decide(&[client(limit).cost(Cost::new(cost))], now).await.unwrap().passes()
}

async fn used(store: &SyncStore, limit: &Limit, now: Timestamp) -> u64 {
    store.peek(&[client(limit)], now).await.unwrap().outcomes.iter().map(|o| o.limit - o.remaining).sum()
}

/// All keys expire.
async fn assert_keys_expire(server: &RedisServer) {
    let client = redis::Client::open(server.url()).unwrap();
    let mut raw = client.get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<String> = raw.keys("*").await.unwrap();
    assert_ne!(keys.len(), 0);
    for key in keys {
        assert!(raw.pttl::<_, i64>(&key).await.unwrap() > 0, "{key} does not expire");
    }
}

#[tokio::test]
async fn single_node_decides_like_the_memory_store() {
    let server = RedisServer::start();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for trace in 0..60_u64 {
        let (store, oracle) = (node(&server), MemoryStore::with_cap(1 << 20));
        let rules: Vec<_> =
            ALGORITHMS.iter().map(|algorithm| (RuleId::named(algorithm.name()), *algorithm)).collect();
        let limits: Vec<_> =
            rules.iter().map(|(_, algorithm)| limit(*algorithm, random.u64(1..40))).collect();
        let client = trace.to_be_bytes();
        let mut now = START;
        for step in 0..120 {
            now = now + TimeSpan::from_micros(random.u64(0..4_000_000));
            let checks: Vec<_> = (0..random.usize(1..=4))
                .map(|_| {
                    let index = random.usize(..3);
                    let role =
                        [Role::Binding, Role::Binding, Role::Advisory, Role::Overage][random.usize(..4)];
                    let key = CounterKey::new(rules[index].0, &client);
                    Check::new(key, &limits[index]).cost(Cost::new(random.u64(0..6))).role(role)
                })
                .collect();
            let expected = oracle.decide(&checks, now).await.unwrap();
            assert_eq!(store.decide(&checks, now).await.unwrap(), expected, "trace {trace}, step {step}");
            let key = checks[0].key;
            match random.u8(..12) {
                0 => {
                    let refunds = expected.refunds(&checks);
                    now = now + TimeSpan::from_micros(random.u64(0..2_000_000));
                    oracle.refund(&refunds, now).await.unwrap();
                    store.refund(&refunds, now).await.unwrap();
                }
                1 => {
                    oracle.reset(key).await.unwrap();
                    store.reset(key).await.unwrap();
                }
                2..5 => store.exchange(now).await.unwrap(),
                _ => {}
            }
            let expected = oracle.peek(&checks, now).await.unwrap();
            assert_eq!(store.peek(&checks, now).await.unwrap(), expected, "trace {trace}, step {step}");
        }
    }
    assert_keys_expire(&server).await;
}

/// Replays admitted requests of all nodes in the order of time. Returns the most units beyond the limit.
fn excess(limit: &Limit, admitted: &[(Timestamp, u64)]) -> u64 {
    let mut state = CounterState::default();
    let mut largest = 0;
    for (at, cost) in admitted {
        limit.charge(&mut state, *at, Cost::new(*cost));
        largest = largest.max(limit.used(&state, *at).saturating_sub(limit.capacity()));
    }
    largest
}

#[tokio::test]
async fn nodes_together_exceed_a_limit_by_at_most_the_published_bound() {
    let server = RedisServer::start();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut exceeded, mut traces) = (0, 0);
    for trace in 0..24_u64 {
        let algorithm = ALGORITHMS[usize::try_from(trace).unwrap() % 3];
        let spec = Spec::new(random.u64(5..300), TimeSpan::from_millis(random.u64(2_000..60_000)));
        let limit = Limit::new(algorithm, spec).unwrap();
        let nodes = [node(&server), node(&server), node(&server)];
        let name = trace.to_be_bytes();
        let gap = spec.window.as_micros() / spec.requests;
        let (mut now, mut admitted, mut exchanged_at) = (START, Vec::new(), START);
        for _ in 0..300 {
            now = now + TimeSpan::from_micros(random.u64(0..gap));
            // By the server's clock a background task does this, also on nodes without requests.
            if now.since(exchanged_at) >= TimeSpan::from_secs(1) {
                exchanged_at = now;
                for node in &nodes {
                    node.exchange(now).await.unwrap();
                }
            }
            let cost = random.u64(1..=3);
            let check = Check::new(CounterKey::new(RULE, &name), &limit).cost(Cost::new(cost));
            if nodes[random.usize(..3)].decide(&[check], now).await.unwrap().passes() {
                admitted.push((now, cost));
            }
        }
        for node in &nodes {
            node.exchange(now).await.unwrap();
        }
        let reports = nodes.each_ref().map(SyncStore::report);
        let bound = reports.iter().map(|report| report.overshoot_bound).max().unwrap();
        let excess = excess(&limit, &admitted);
        assert!(excess <= bound, "{algorithm} {spec:?}: {excess} > {bound}");
        if algorithm == Algorithm::FixedWindow {
            let measured = reports.iter().map(|report| report.largest_overshoot).max().unwrap();
            assert!(measured <= bound, "{measured} {bound}");
            let total: u64 = reports.iter().map(|report| report.total_overshoot).sum();
            assert!(total >= measured);
        }
        exceeded += u32::from(excess > 0);
        traces += 1;
    }
    println!("{exceeded} of {traces} traces exceeded the limit, all within the bound");
    assert_keys_expire(&server).await;
}

/// How long after the limit was reached the last unit beyond it was admitted; zero if there was none.
fn last_excess(limit: &Limit, mut admitted: Vec<Timestamp>) -> TimeSpan {
    admitted.sort_unstable();
    let capacity = usize::try_from(limit.capacity()).unwrap();
    let Some(reached) = admitted.get(capacity - 1) else { panic!("the limit is not reached") };
    admitted.last().map_or(TimeSpan::ZERO, |last| last.since(*reached))
}

/// The longest time after which the excess ends, with an interval of a second.
const EXCESS_ENDS: TimeSpan = TimeSpan::from_millis(1_100);

#[tokio::test]
async fn excess_ends_within_one_interval_of_the_moment_the_limit_is_reached() {
    let server = RedisServer::start();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for run in 0..20_u64 {
        let limit =
            Limit::new(Algorithm::FixedWindow, Spec::new(random.u64(60..400), TimeSpan::from_secs(3_600)));
        let (limit, name) = (limit.unwrap(), run.to_be_bytes());
        let check = Check::new(CounterKey::new(RULE, &name), &limit);
        // The nodes exchange at different moments, and each has a rate of its own.
        let nodes = [(); 3].map(|()| node(&server));
        let mut next = [(); 3].map(|()| START + TimeSpan::from_millis(random.u64(0..1_000)));
        let gaps = [(); 3].map(|()| random.u64(4..40));
        let (mut admitted, end) = (Vec::new(), START + TimeSpan::from_secs(12));
        loop {
            let (index, at) = (0..3).map(|index| (index, next[index])).min_by_key(|(_, at)| *at).unwrap();
            if at >= end {
                break;
            }
            if nodes[index].decide(&[check], at).await.unwrap().passes() {
                admitted.push(at);
            }
            next[index] = at + TimeSpan::from_millis(gaps[index]);
        }
        let ended = last_excess(&limit, admitted);
        assert!(ended <= EXCESS_ENDS, "run {run}, limit {}: {ended:?}", limit.capacity());
    }
}

/// `cargo xtask scorecard sync`.
#[tokio::test]
#[ignore = "takes three minutes of wall-clock time"]
async fn long_sync_excess_ends_within_one_interval() {
    let (server, clock) = (RedisServer::start(), Arc::new(SystemClock::new()));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut latest = TimeSpan::ZERO;
    for run in 0..20_u64 {
        let limit =
            Limit::new(Algorithm::FixedWindow, Spec::new(random.u64(60..300), TimeSpan::from_secs(3_600)));
        let limit = limit.unwrap();
        let mut nodes = tokio::task::JoinSet::new();
        for index in 0..3 {
            let store =
                SyncStore::connect(config(&server, TimeSource::Server), Arc::<SystemClock>::clone(&clock));
            let (delay, gap, clock) = (random.u64(0..1_000), random.u64(2..12), Arc::clone(&clock));
            // One node has no requests for a while, again and again.
            let pause = if index == 0 { random.u64(200..1_500) } else { 0 };
            nodes.spawn(async move {
                tokio::time::sleep(Duration::from_millis(delay)).await;
                let (name, mut admitted, started) = (run.to_be_bytes(), Vec::new(), clock.now());
                let check = Check::new(CounterKey::new(RULE, &name), &limit);
                while clock.now().since(started) < TimeSpan::from_secs(8) {
                    if store.decide(&[check], clock.now()).await.unwrap().passes() {
                        admitted.push(clock.now());
                    }
                    let is_pause = admitted.len() % 50 == 7;
                    tokio::time::sleep(Duration::from_millis(if is_pause { gap + pause } else { gap })).await;
                }
                admitted
            });
        }
        let admitted = nodes.join_all().await.concat();
        let (count, ended) = (admitted.len(), last_excess(&limit, admitted));
        println!("run {run}: {count} of {}, the excess ended after {ended:?}", limit.capacity());
        latest = latest.max(ended);
    }
    println!("the last excess ended {latest:?} after its limit was reached");
    assert!(latest <= EXCESS_ENDS);
}

#[tokio::test]
async fn nodes_share_a_limit_after_an_exchange() {
    let server = RedisServer::start();
    for algorithm in ALGORITHMS {
        let limit = limit(*algorithm, 30);
        let nodes = [node(&server), node(&server), node(&server)];
        let key = CounterKey::new(RuleId::named(algorithm.name()), b"client");
        let check = Check::new(key, &limit).cost(Cost::new(10));
        for node in &nodes {
            assert!(node.decide(&[check], START).await.unwrap().passes());
        }
        for _ in 0..2 {
            for node in &nodes {
                node.exchange(START).await.unwrap();
                node.decide(&[check.cost(Cost::ZERO)], START).await.unwrap();
            }
        }
        for node in &nodes {
            let decision = node.decide(&[check.cost(Cost::ONE)], START).await.unwrap();
            assert!(!decision.passes(), "{algorithm}: {decision:?}");
            assert_eq!(node.report().largest_overshoot, 0);
        }
    }
}

#[tokio::test]
async fn late_push_after_a_partition_is_not_charged_to_a_new_window() {
    for algorithm in ALGORITHMS {
        let server = RedisServer::start();
        let limit = limit(*algorithm, 60);
        let (one, other) = (node(&server), node(&server));
        // START is 20 s after the start of a window.
        assert!(spend(&one, &limit, START, 50).await);
        let later = START + TimeSpan::from_secs(121);
        assert!(spend(&other, &limit, later, 5).await);
        other.exchange(later).await.unwrap();
        one.exchange(later).await.unwrap();
        assert!(spend(&other, &limit, later, 0).await);
        other.exchange(later).await.unwrap();
        assert_eq!(used(&other, &limit, later).await, 5, "{algorithm}");
        assert_eq!(used(&one, &limit, later).await, 5, "{algorithm}");
    }
}

#[tokio::test]
async fn late_push_within_the_window_is_charged() {
    for algorithm in ALGORITHMS {
        let server = RedisServer::start();
        let limit = limit(*algorithm, 60);
        let (one, other) = (node(&server), node(&server));
        assert!(spend(&one, &limit, START, 50).await);
        let later = START + TimeSpan::from_secs(20);
        one.exchange(later).await.unwrap();
        assert!(spend(&other, &limit, later, 0).await);
        other.exchange(later).await.unwrap();
        let expected = if *algorithm == Algorithm::TokenBucket { 30 } else { 50 };
        assert_eq!(used(&other, &limit, later).await, expected, "{algorithm}");
    }
}

#[tokio::test]
async fn reset_drops_changes_made_before_it_on_every_node() {
    for algorithm in ALGORITHMS {
        let server = RedisServer::start();
        let limit = limit(*algorithm, 10);
        let (one, other) = (node(&server), node(&server));
        let after = START + TimeSpan::from_millis(5);
        assert!(spend(&one, &limit, START, 10).await);
        assert!(spend(&other, &limit, after, 0).await);
        other.reset(CounterKey::new(RULE, b"client")).await.unwrap();
        one.exchange(after).await.unwrap();
        assert_eq!(used(&one, &limit, after).await, 0, "{algorithm}: a push of the earlier epoch is dropped");
        assert!(spend(&one, &limit, after, 4).await);
        one.exchange(after).await.unwrap();
        assert!(spend(&other, &limit, after, 3).await);
        other.exchange(after).await.unwrap();
        assert_eq!(used(&other, &limit, after).await, 7, "{algorithm}");
        assert_keys_expire(&server).await;
    }
}

#[tokio::test]
async fn refund_reaches_the_other_node() {
    for algorithm in ALGORITHMS {
        let server = RedisServer::start();
        let limit = limit(*algorithm, 10);
        let (one, other) = (node(&server), node(&server));
        let check = client(&limit).cost(Cost::new(8));
        let decision = one.decide(&[check], START).await.unwrap();
        one.exchange(START).await.unwrap();
        one.refund(&decision.refunds(&[check]), START).await.unwrap();
        one.exchange(START).await.unwrap();
        assert!(spend(&other, &limit, START, 1).await);
        other.exchange(START).await.unwrap();
        assert_eq!(used(&other, &limit, START).await, 1, "{algorithm}");
    }
}

#[tokio::test]
async fn decision_over_several_checks_is_all_or_nothing() {
    let server = RedisServer::start();
    let store = node(&server);
    let (narrow, wide) = (limit(Algorithm::TokenBucket, 2), limit(Algorithm::FixedWindow, 10));
    let checks = [
        Check::new(CounterKey::new(RuleId::named("wide"), b"client"), &wide),
        Check::new(CounterKey::new(RuleId::named("narrow"), b"client"), &narrow),
        Check::new(CounterKey::new(RuleId::named("shadow"), b"client"), &narrow).role(Role::Advisory),
    ];
    let mut decisions = Vec::new();
    store.decide_batch(&[&checks, &checks, &checks], START, &mut decisions).await.unwrap();
    assert_eq!(decisions.iter().map(Decision::passes).collect::<Vec<_>>(), [true, true, false]);
    let left = store.peek(&checks, START).await.unwrap();
    assert_eq!(left.outcomes.iter().map(|outcome| outcome.remaining).collect::<Vec<_>>(), [8, 0, 0]);
}

#[tokio::test]
async fn override_replaces_the_limit_and_keeps_what_was_spent() {
    let server = RedisServer::start();
    let (store, narrow) = (node(&server), limit(Algorithm::FixedWindow, 10));
    assert!(spend(&store, &narrow, START, 10).await);
    let until = START + TimeSpan::from_secs(20);
    let wide = Override { limit: limit(Algorithm::FixedWindow, 100), until };
    store.override_limit(CounterKey::new(RULE, b"client"), Some(wide), START).await.unwrap();
    assert!(spend(&store, &narrow, START, 90).await);
    assert!(!spend(&store, &narrow, START, 1).await);
    store.exchange(START).await.unwrap();
    assert_eq!(used(&store, &narrow, START).await, 100);
    assert_eq!(used(&store, &narrow, until).await, 10, "under its own limit nothing is left");
}

#[tokio::test]
async fn stopped_server_is_unavailable_once_the_copies_are_too_old() {
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::at(START));
    let config =
        RedisConfig { sync_interval: Duration::from_hours(1), ..config(&server, TimeSource::Server) };
    let store = SyncStore::connect(config, Arc::clone(&clock) as Arc<dyn Clock>);
    let limit = limit(Algorithm::TokenBucket, 100);
    assert!(spend(&store, &limit, START, 1).await);
    drop(server);
    clock.advance(TimeSpan::from_secs(7_200));
    assert!(spend(&store, &limit, START, 1).await, "two intervals without an exchange");
    clock.advance(TimeSpan::from_secs(6));
    let error = store.decide(&[client(&limit)], START).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(store.exchange(START).await.is_err());
    assert!(store.report().failed_exchanges >= 1);
}

#[tokio::test]
async fn nodes_without_exchanges_admit_for_two_intervals_and_a_timeout() {
    let server = RedisServer::start();
    let times = (Duration::from_hours(1), Duration::from_secs(5));
    let limit = Limit::new(Algorithm::FixedWindow, Spec::new(10, TimeSpan::from_secs(1 << 30))).unwrap();
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        let clock = Arc::new(ManualClock::at(START));
        let config =
            RedisConfig { sync_interval: times.0, timeout: times.1, ..config(&server, TimeSource::Server) };
        let store = SyncStore::connect(config, Arc::clone(&clock) as Arc<dyn Clock>);
        assert!(spend(&store, &limit, START, 1).await);
        nodes.push((store, clock));
    }
    drop(server);
    let (step, mut longest, mut admitted) = (TimeSpan::from_secs(900), TimeSpan::ZERO, u64::from(NODES));
    for (store, clock) in &nodes {
        clock.advance(step);
        while let Ok(decision) = store.decide(&[client(&limit)], START).await {
            longest = longest.max(clock.now().since(START));
            admitted += u64::from(decision.passes());
            clock.advance(step);
        }
    }
    assert!(longest <= TimeSpan::from(2 * times.0 + times.1), "{longest:?}");
    // 9 of 10 per node: one at the start, and one in each quarter of an hour of two intervals.
    // A node whose copy already contains units of the others admits fewer.
    assert!((25..=27).contains(&admitted), "{admitted}");
    let bound = limit.capacity() + u64::from(NODES - 1) * 9;
    assert!(admitted <= bound, "{admitted} of {bound}");
}

#[tokio::test]
async fn nodes_with_skewed_clocks_agree() {
    let server = RedisServer::start();
    let wall = SystemClock::new().now();
    let offsets = [wall - TimeSpan::from_secs(5), wall, wall + TimeSpan::from_secs(5)];
    let limit = Limit::new(Algorithm::TokenBucket, Spec::new(30, TimeSpan::from_secs(86_400))).unwrap();
    let mut nodes = Vec::new();
    for at in offsets {
        let config =
            RedisConfig { sync_interval: Duration::from_hours(1), ..config(&server, TimeSource::Server) };
        nodes.push(SyncStore::connect(config, Arc::new(ManualClock::at(at))));
    }
    let mut times = HashMap::new();
    for round in 0..15 {
        for (number, node) in nodes.iter().enumerate() {
            let decision = node.decide(&[client(&limit)], Timestamp::MAX).await.unwrap();
            assert_eq!(decision.passes(), round < 10, "round {round}, node {number}");
            times.insert(number, decision.at);
            node.exchange(Timestamp::ZERO).await.unwrap();
        }
        // Every node sees what the others spent in this round.
        for node in &nodes {
            node.decide(&[client(&limit).cost(Cost::ZERO)], Timestamp::MAX).await.unwrap();
            node.exchange(Timestamp::ZERO).await.unwrap();
        }
    }
    let (first, last) = (times.values().min().unwrap(), times.values().max().unwrap());
    assert!(last.since(*first) < TimeSpan::from_secs(2), "the nodes' times differ: {times:?}");
    assert_eq!(nodes.iter().map(|node| node.report().largest_overshoot).max(), Some(0));
    assert_keys_expire(&server).await;
}

#[tokio::test]
async fn many_counters_are_exchanged_in_calls_of_limited_size() {
    let server = RedisServer::start();
    let (one, other) = (node(&server), node(&server));
    let limit = limit(Algorithm::SlidingCounter, 10);
    let clients: Vec<_> = (0..1_000_u32).map(u32::to_be_bytes).collect();
    for client in &clients {
        let check = Check::new(CounterKey::new(RULE, client), &limit).cost(Cost::new(10));
        assert!(one.decide(&[check], START).await.unwrap().passes());
        assert!(other.decide(&[check.cost(Cost::ZERO)], START).await.unwrap().passes());
    }
    one.exchange(START).await.unwrap();
    other.exchange(START).await.unwrap();
    for client in &clients {
        let check = Check::new(CounterKey::new(RULE, client), &limit);
        assert!(!other.decide(&[check], START).await.unwrap().passes());
    }
    assert_eq!(other.report().counters, 1_000);
    assert_keys_expire(&server).await;
}

#[tokio::test]
async fn node_without_a_copy_peeks_at_the_counter_and_refunds_it() {
    for algorithm in ALGORITHMS {
        let server = RedisServer::start();
        let limit = limit(*algorithm, 60);
        let checks = [client(&limit).cost(Cost::new(20))];
        let first = node(&server);
        let decision = first.decide(&checks, START).await.unwrap();
        first.exchange(START).await.unwrap();
        assert_eq!(used(&node(&server), &limit, START).await, 20, "{algorithm}");
        let other = node(&server);
        other.refund(&decision.refunds(&checks), START).await.unwrap();
        other.exchange(START).await.unwrap();
        assert_eq!(used(&node(&server), &limit, START).await, 0, "{algorithm}");
    }
}

#[tokio::test]
async fn entry_of_another_type_fails_no_other_counter() {
    let server = RedisServer::start();
    let (store, limit) = (node(&server), limit(Algorithm::FixedWindow, 10));
    assert!(spend(&store, &limit, START, 1).await);
    store.exchange(START).await.unwrap();
    let raw = redis::Client::open(server.url()).unwrap();
    let mut raw = raw.get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<Vec<u8>> = raw.keys("*S").await.unwrap();
    raw.del::<_, ()>(&keys).await.unwrap();
    raw.lpush::<_, _, ()>(&keys[0], "x").await.unwrap();
    assert!(spend(&store, &limit, START, 1).await);
    store.exchange(START).await.unwrap();
    let failed = store.decide(&[client(&limit)], START).await;
    assert!(matches!(failed, Err(StoreError::Protocol { .. })), "{failed:?}");
}
