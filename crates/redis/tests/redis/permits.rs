//! Permits that nodes share: never too many, and none is lost.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tidegate_core::{Coordination, CounterKey, Ratio, RuleId, StoreFailureMode, TimeSpan, Timestamp};
use tidegate_redis::{Endpoint, RedisConfig, RedisStore, TimeSource};
use tidegate_store::{ManualClock, PermitGrant, RuleSettings, SharedPermit, Store, StoreError, SystemClock};
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{RedisCluster, RedisServer};
use tidegate_testkit::wait::{eventually, within};

const RULE: RuleId = RuleId::named("exports");
const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const MAX: u32 = 3;

fn config(url: &str) -> RedisConfig {
    // Longer than by default: a busy machine must not cause a fallback.
    RedisConfig { timeout: Duration::from_secs(2), ..RedisConfig::new(Endpoint::parse(url).unwrap()) }
}

async fn connect(config: RedisConfig) -> RedisStore {
    let store = RedisStore::new(config, Arc::new(SystemClock::new()));
    within("a connection", store.ping()).await.unwrap();
    store
}

async fn acquire(store: &RedisStore, client: &[u8], now: Timestamp) -> Option<SharedPermit> {
    match store.acquire_permit(CounterKey::new(RULE, client), MAX, now).await.unwrap() {
        PermitGrant::Shared(permit) => Some(permit),
        PermitGrant::Exhausted => None,
        other => panic!("{other:?}"),
    }
}

/// Acquires all permits of a client as soon as they are available.
async fn acquire_all(stores: &[RedisStore], client: &[u8]) -> Vec<SharedPermit> {
    let mut permits = Vec::new();
    let acquiring = async {
        for store in stores.iter().cycle() {
            permits.extend(acquire(store, client, Timestamp::ZERO).await);
            if permits.len() == MAX as usize {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    within("all permits are available", acquiring).await;
    permits
}

#[tokio::test]
async fn permits_of_two_nodes_never_exceed_the_maximum_and_all_return() {
    let server = RedisServer::start();
    let stores = [connect(config(&server.url())).await, connect(config(&server.url())).await];
    let clients: [&[u8]; 2] = [b"ann", b"bob"];
    let mut held: [Vec<SharedPermit>; 2] = Default::default();
    let (mut granted, mut exhausted, mut cancelled) = (0, 0, 0);
    let mut random = fastrand::Rng::with_seed(16);
    for step in 0..3_000 {
        let (store, client) = (&stores[random.usize(..2)], random.usize(..2));
        match random.u8(..8) {
            // The request is cancelled while the store decides.
            0 => {
                let mut future = Box::pin(acquire(store, clients[client], Timestamp::ZERO));
                let polled = std::future::poll_fn(|context| Poll::Ready(future.poll_unpin(context))).await;
                cancelled += u32::from(polled.is_pending());
            }
            1..4 if !held[client].is_empty() => {
                let permit = random.usize(..held[client].len());
                drop(held[client].swap_remove(permit));
            }
            _ => match acquire(store, clients[client], Timestamp::ZERO).await {
                Some(permit) => {
                    granted += 1;
                    held[client].push(permit);
                }
                None => exhausted += 1,
            },
        }
        assert!(held.iter().all(|permits| permits.len() <= MAX as usize), "step {step}");
    }
    assert!(granted.min(exhausted).min(cancelled) > 100, "{granted}, {exhausted}, {cancelled}");
    crate::assert_all_keys_expire(&mut crate::raw(&server).await).await;
    drop(held);
    for client in clients {
        let permits = acquire_all(&stores, client).await;
        assert!(acquire(&stores[0], client, Timestamp::ZERO).await.is_none());
        drop(permits);
    }
}

#[tokio::test]
async fn permit_released_on_a_node_is_available_there_at_once() {
    let server = RedisServer::start();
    let store = connect(config(&server.url())).await;
    let mut permits = Vec::new();
    for _ in 0..MAX {
        permits.push(acquire(&store, b"ann", Timestamp::ZERO).await.unwrap());
    }
    for _ in 0..100 {
        assert!(acquire(&store, b"ann", Timestamp::ZERO).await.is_none());
        permits.pop();
        permits.push(acquire(&store, b"ann", Timestamp::ZERO).await.unwrap());
    }
}

#[tokio::test]
async fn permits_of_a_killed_node_return_when_they_expire() {
    let server = RedisServer::start();
    let caller = || RedisConfig { time: TimeSource::Caller, ..config(&server.url()) };
    let (killed, other) = (connect(caller()).await, connect(caller()).await);
    let mut permits = Vec::new();
    for _ in 0..MAX {
        permits.push(acquire(&killed, b"ann", START).await.unwrap());
    }
    // From here on the permits are neither renewed nor released.
    drop(killed);
    let expiry = START + TimeSpan::from_secs(30);
    assert!(acquire(&other, b"ann", Timestamp::from_micros(expiry.as_micros() - 1)).await.is_none());
    let mut returned = Vec::new();
    for _ in 0..MAX {
        returned.push(acquire(&other, b"ann", expiry).await.unwrap());
    }
    assert!(acquire(&other, b"ann", expiry).await.is_none());
    assert_eq!(permits.len(), returned.len());
}

#[tokio::test]
async fn permits_in_a_cluster_are_shared_in_every_slot() {
    let cluster = RedisCluster::start();
    let stores = [connect(config(&cluster.url())).await, connect(config(&cluster.url())).await];
    for client in 0_u8..20 {
        let permits = acquire_all(&stores, &[client]).await;
        assert!(acquire(&stores[1], &[client], Timestamp::ZERO).await.is_none());
        drop(permits);
        drop(acquire_all(&stores, &[client]).await);
    }
}

#[tokio::test]
async fn permits_without_redis_follow_the_failure_mode() {
    let config = RedisConfig {
        fallback_share: Ratio::from_percent(50),
        nodes: 3.try_into().unwrap(),
        ..config(&format!("redis://{}", free_address()))
    };
    let store = RedisStore::new(config, Arc::new(ManualClock::at(START)));
    let acquire = async |on_store_failure, max| {
        store.apply_settings(&[RuleSettings {
            rule: RULE,
            coordination: Coordination::Central,
            on_store_failure,
        }]);
        store.acquire_permit(CounterKey::new(RULE, b"ann"), max, START).await
    };
    let local = async |max| match acquire(StoreFailureMode::Local, max).await.unwrap() {
        PermitGrant::Local { max } => max,
        other => panic!("{other:?}"),
    };
    assert_eq!((local(20).await, local(2).await), (3, 1), "half of the limit, divided by three nodes");
    assert!(matches!(acquire(StoreFailureMode::Allow, 2).await, Ok(PermitGrant::Unlimited)));
    assert!(matches!(acquire(StoreFailureMode::Deny, 2).await, Err(StoreError::Unavailable(_))));
    let decisions = store.report().fallback_decisions;
    assert_eq!((decisions.local, decisions.allow, decisions.deny), (2, 1, 1));
}

#[tokio::test]
async fn permits_acquired_or_released_while_redis_hangs_are_available_when_it_continues() {
    let server = RedisServer::start();
    let hasty = RedisConfig { timeout: Duration::from_millis(100), ..config(&server.url()) };
    let (node, other) = (connect(hasty).await, connect(config(&server.url())).await);
    let released_meanwhile = acquire(&node, b"ann", Timestamp::ZERO).await.unwrap();
    server.stop();
    // Redis runs them when it continues, after their callers have given up.
    let late = (0..MAX).map(|_| node.acquire_permit(CounterKey::new(RULE, b"ann"), MAX, Timestamp::ZERO));
    for grant in join_all(late).await {
        assert!(matches!(grant, Ok(PermitGrant::Local { .. })), "{grant:?}");
    }
    eventually("an open breaker", || node.report().link.servers_open == 1).await;
    drop(released_meanwhile);
    server.resume();
    drop(acquire_all(&[other], b"ann").await);
}
