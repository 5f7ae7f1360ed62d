//! Some nodes have the old limit of a rule and some the new one, with leases and with copies of counters.
//!
//! Each limit has a counter of its own, to which everything is charged that any node admits. So a node admits only what its
//! limit admits on top of everything.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    Algorithm, Check, Cost, CounterKey, CounterState, Limit, RuleId, Spec, TimeSpan, Timestamp,
};
use tidegate_redis::{Endpoint, LeaseStore, RedisConfig, SyncStore, TimeSource};
use tidegate_store::{Store, SystemClock};
use tidegate_testkit::process::RedisServer;

use crate::{assert_all_keys_expire, raw};

/// The start of an hour.
const START: Timestamp = Timestamp::from_secs(1_699_999_200);
const ALGORITHMS: [Algorithm; 3] =
    [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingCounter];

fn limit(algorithm: Algorithm, requests: u64, seconds: u64) -> Limit {
    Limit::new(algorithm, Spec::new(requests, TimeSpan::from_secs(seconds))).unwrap()
}

fn config(server: &RedisServer) -> RedisConfig {
    RedisConfig {
        time: TimeSource::Caller,
        nodes: NonZeroU32::new(2).unwrap(),
        // A busy machine must not decide the outcome of a test.
        timeout: Duration::from_secs(5),
        ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap())
    }
}

fn lease_node(server: &RedisServer) -> LeaseStore {
    LeaseStore::connect(config(server), Arc::new(SystemClock::new()))
}

fn sync_node(server: &RedisServer) -> SyncStore {
    SyncStore::connect(config(server), Arc::new(SystemClock::new()))
}

/// An admission: when, and by which node.
type Admission = (Timestamp, usize);

/// Two nodes with a limit each take requests in turn, every `step` until `end`. `after` runs after each step.
async fn alternate<S: Store>(
    nodes: &[S; 2],
    limits: [Limit; 2],
    client: &[u8],
    (step, end): (TimeSpan, TimeSpan),
    after: impl AsyncFn(&[S; 2], Timestamp),
) -> Vec<Admission> {
    let key = CounterKey::new(RuleId::named("default"), client);
    let (mut now, mut admitted) = (START, Vec::new());
    while now.since(START) < end {
        for by in [0, 1] {
            // Both nodes want more than their limits.
            for _ in 0..2 {
                if nodes[by].decide(&[Check::new(key, &limits[by])], now).await.unwrap().passes() {
                    admitted.push((now, by));
                }
            }
        }
        after(nodes, now).await;
        now = now + step;
    }
    admitted
}

/// The most units above its limit to which node `by` has admitted a request, on top of everything that both nodes admitted.
fn excess(limit: &Limit, by: usize, admitted: &[Admission]) -> u64 {
    let mut state = CounterState::default();
    let mut excess = 0;
    for (at, node) in admitted {
        limit.charge(&mut state, *at, Cost::ONE);
        if *node == by {
            excess = excess.max(limit.used(&state, *at).saturating_sub(limit.capacity()));
        }
    }
    excess
}

async fn settle(nodes: &[LeaseStore; 2], now: Timestamp) {
    for node in nodes {
        node.settle(now).await;
    }
}

#[tokio::test]
async fn leases_under_a_short_and_a_long_window_count_under_both() {
    let server = RedisServer::start();
    for algorithm in ALGORITHMS {
        for order in [[0, 1], [1, 0]] {
            let both = [limit(algorithm, 10, 60), limit(algorithm, 100, 3_600)];
            let limits = order.map(|index| both[index]);
            let nodes = [lease_node(&server), lease_node(&server)];
            let client = format!("{algorithm} {order:?}");
            let times = (TimeSpan::from_secs(1), TimeSpan::from_secs(1_800));
            let admitted = alternate(&nodes, limits, client.as_bytes(), times, settle).await;
            for by in [0, 1] {
                assert_eq!(excess(&limits[by], by, &admitted), 0, "{client}: {by}");
            }
            // 10 in each of 30 minutes, and once the burst of the other limit.
            let count = admitted.len();
            assert!((200..=400).contains(&count), "{client}: {count} admitted");
        }
    }
    assert!(assert_all_keys_expire(&mut raw(&server).await).await > 0);
}

#[tokio::test]
async fn leases_under_two_algorithms_count_under_both() {
    let server = RedisServer::start();
    for old in ALGORITHMS {
        for new in ALGORITHMS.into_iter().filter(|new| *new != old) {
            let limits = [limit(old, 30, 60), limit(new, 40, 120)];
            let nodes = [lease_node(&server), lease_node(&server)];
            let client = format!("{old} {new}");
            let times = (TimeSpan::from_millis(500), TimeSpan::from_secs(360));
            let admitted = alternate(&nodes, limits, client.as_bytes(), times, settle).await;
            assert!(admitted.len() > 60, "{client}: {}", admitted.len());
            for by in [0, 1] {
                assert_eq!(excess(&limits[by], by, &admitted), 0, "{client}: {by}");
            }
        }
    }
}

async fn alternate_copies(server: &RedisServer, limits: [Limit; 2], client: &str) -> Vec<Admission> {
    let nodes = [sync_node(server), sync_node(server)];
    let exchange = async |nodes: &[SyncStore; 2], now| {
        for node in nodes {
            node.exchange(now).await.unwrap();
        }
    };
    let times = (TimeSpan::from_secs(3), TimeSpan::from_secs(1_500));
    let admitted = alternate(&nodes, limits, client.as_bytes(), times, exchange).await;
    for by in [0, 1] {
        // A node admits at most 2 units between two exchanges, and may miss those of the other.
        let excess = excess(&limits[by], by, &admitted);
        assert!(excess <= 4, "{client}: {by}: {excess} of {}", admitted.len());
    }
    admitted
}

#[tokio::test]
async fn copies_under_a_short_and_a_long_window_count_under_both() {
    let server = RedisServer::start();
    for algorithm in ALGORITHMS {
        for order in [[0, 1], [1, 0]] {
            let both = [limit(algorithm, 10, 60), limit(algorithm, 100, 3_600)];
            let client = format!("{algorithm} {order:?}");
            let count = alternate_copies(&server, order.map(|index| both[index]), &client).await.len();
            // 10 in each of 25 minutes, and once the burst of the other limit.
            assert!((200..=360).contains(&count), "{client}: {count} admitted");
        }
    }
    assert!(assert_all_keys_expire(&mut raw(&server).await).await > 0);
}

#[tokio::test]
async fn copies_under_two_algorithms_count_under_both() {
    let server = RedisServer::start();
    for old in ALGORITHMS {
        for new in ALGORITHMS.into_iter().filter(|new| *new != old) {
            let (limits, client) = ([limit(old, 10, 60), limit(new, 100, 600)], format!("{old} {new}"));
            let count = alternate_copies(&server, limits, &client).await.len();
            assert!((200..=500).contains(&count), "{client}: {count} admitted");
        }
    }
}
