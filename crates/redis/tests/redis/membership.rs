//! Which nodes share the limits, and the state of a node without requests.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::TimeSpan;
use tidegate_redis::{Endpoint, RedisConfig, RedisStore};
use tidegate_store::{Clock, SystemClock};
use tidegate_testkit::process::RedisServer;
use tidegate_testkit::wait::eventually;

/// Shorter than the time after which a node that is only silent is not counted.
const SOON: TimeSpan = TimeSpan::from_secs(8);

fn open(server: &RedisServer, secret: &[u8]) -> RedisStore {
    let endpoint = Endpoint::parse(&server.url()).unwrap();
    let config = RedisConfig {
        timeout: Duration::from_millis(80),
        secret: secret.to_vec(),
        ..RedisConfig::new(endpoint)
    };
    RedisStore::new(config, Arc::new(SystemClock::new()))
}

fn nodes(store: &RedisStore) -> (u32, u32) {
    let report = store.report();
    (report.nodes, report.nodes_with_other_secret)
}

#[tokio::test]
async fn node_that_leaves_or_is_dropped_is_not_counted_any_more() {
    let server = RedisServer::start();
    let [first, second, third] = [(); 3].map(|()| open(&server, b"secret"));
    eventually("three nodes", || nodes(&first).0 == 3).await;
    let clock = SystemClock::new();
    let left = clock.now();
    second.leave().await.unwrap();
    eventually("two nodes", || nodes(&first).0 == 2).await;
    drop(third);
    eventually("one node", || nodes(&first).0 == 1).await;
    let elapsed = clock.now().since(left);
    assert!(elapsed < SOON, "{elapsed}");
}

#[tokio::test]
async fn node_with_another_secret_is_reported_and_not_counted() {
    let server = RedisServer::start();
    let stores = [open(&server, b"secret"), open(&server, b"secret"), open(&server, b"other")];
    let expected = [(2, 1), (2, 1), (1, 2)];
    eventually("the nodes", || stores.iter().map(nodes).eq(expected)).await;
}

#[tokio::test]
async fn invented_members_are_counted_up_to_a_bound() {
    let server = RedisServer::start();
    let script = "local now = tonumber(redis.call('TIME')[1]) * 1000 + 2000 \
                  for i = 1, 5000 do redis.call('ZADD', KEYS[1], now, 'fake' .. i) end";
    server.command(&["EVAL", script, "1", "tg:{nodes}"]);
    let store = open(&server, b"secret");
    eventually("a bounded number", || nodes(&store) == (1, 1_000)).await;
}

#[tokio::test]
async fn idle_node_is_in_fallback_while_redis_is_away() {
    let mut server = RedisServer::start();
    let store = open(&server, b"secret");
    eventually("a connection", || store.report().link.servers_connected == 1).await;
    assert!(!store.report().is_in_fallback);
    server.kill();
    eventually("fallback", || store.report().is_in_fallback).await;
    assert_eq!(store.report().link.servers_connected, 0);
    server.restart();
    eventually("normal operation", || !store.report().is_in_fallback).await;
    assert!(store.report().fallback_time.as_micros() > 0);
    let link = store.report().link;
    assert_eq!(link.latency.iter().sum::<u64>(), 0, "heartbeats are no decisions");
}
