//! Records that nodes share.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    Algorithm, Check, Coordination, CounterKey, Limit, RuleId, Spec, StoreFailureMode, TimeSpan, Timestamp,
};
use tidegate_redis::{Endpoint, RedisConfig, RedisStore, SharedRecords};
use tidegate_store::{
    Clock, Override, RecordExchange, RuleSettings, SharedEvent, SharedRecord, Store, SystemClock,
};
use tidegate_testkit::process::RedisServer;
use tidegate_testkit::wait::within;
use tokio::sync::mpsc;

use crate::SkewedClock;

struct Node {
    /// Dropping it ends the exchange.
    store: RedisStore,
    records: SharedRecords,
    events: mpsc::Receiver<SharedEvent>,
}

impl Node {
    /// A node that has reached Redis.
    async fn start(server: &RedisServer) -> Self {
        Self::with_clock(server, Arc::new(SystemClock::new())).await
    }

    async fn with_clock(server: &RedisServer, clock: Arc<dyn Clock>) -> Self {
        // Longer than by default: a busy machine must not cause an error.
        let timeout = Duration::from_secs(2);
        let config = RedisConfig { timeout, ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap()) };
        let store = RedisStore::new(config, clock);
        let (records, mut events) = store.share_records();
        let first = within("the exchange", events.recv()).await;
        assert_eq!(first, Some(SharedEvent::Attached));
        Self { store, records, events }
    }

    /// The next records of other nodes. Messages are skipped.
    async fn next_records(&mut self) -> Vec<SharedRecord> {
        within("records", async {
            loop {
                if let SharedEvent::Records(records) = self.events.recv().await.unwrap() {
                    return records;
                }
            }
        })
        .await
    }
}

fn now() -> Timestamp {
    SystemClock::new().now()
}

fn record(id: &[u8], expires: Option<Timestamp>) -> SharedRecord {
    SharedRecord { id: id.to_vec(), changed: now(), expires, body: Some(b"body".to_vec()) }
}

#[tokio::test]
async fn expired_record_pushed_again_is_not_shared() {
    let server = RedisServer::start();
    let (sender, mut receiver) = (Node::start(&server).await, Node::start(&server).await);
    let expired = record(b"expired", Some(now() - TimeSpan::from_secs(1)));
    let valid = record(b"valid", Some(now() + TimeSpan::from_secs(600)));
    sender.records.publish(vec![expired, valid]);
    let ids: Vec<_> = receiver.next_records().await.into_iter().map(|record| record.id).collect();
    assert_eq!(ids, [b"valid"]);
    let mut raw = crate::raw(&server).await;
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*expiry*").query_async(&mut raw).await.unwrap();
    // The name of the history is in the set too, and never expires.
    let mut count = redis::cmd("ZCOUNT");
    let stored: u64 = count.arg(&keys[0]).arg("-inf").arg("(+inf").query_async(&mut raw).await.unwrap();
    assert_eq!((keys.len(), stored), (1, 1));
}

#[tokio::test]
async fn record_published_after_more_broadcasts_than_the_queue_holds_arrives() {
    let server = RedisServer::start();
    let (sender, mut receiver) = (Node::start(&server).await, Node::start(&server).await);
    // More than wait, sent faster than they leave.
    for _ in 0..40_000 {
        sender.records.broadcast(b"violation".to_vec());
    }
    let ban = record(b"ban", None);
    sender.records.publish(vec![ban.clone()]);
    assert_eq!(receiver.next_records().await, [ban]);
}

#[tokio::test]
async fn record_expires_at_the_same_moment_on_nodes_with_different_clocks() {
    let server = RedisServer::start();
    let (hour, day) = (TimeSpan::from_secs(3_600), TimeSpan::from_secs(86_400));
    let ahead = Node::with_clock(&server, Arc::new(SkewedClock::new(hour, TimeSpan::ZERO))).await;
    let mut behind = Node::with_clock(&server, Arc::new(SkewedClock::new(TimeSpan::ZERO, hour))).await;
    let end = now() + day;
    ahead.records.publish(vec![record(b"ban", Some(end + hour))]);
    let received = behind.next_records().await.remove(0).expires.unwrap();
    let error = received.since(end - hour).max((end - hour).since(received));
    assert!(error < TimeSpan::from_secs(60), "{error:?}");
    // By the clock of the first node it has expired long ago, by that of the second it has not.
    let short = record(b"short", Some(now() - TimeSpan::from_secs(60)));
    let valid = record(b"valid", Some(now() + hour + TimeSpan::from_secs(600)));
    ahead.records.publish(vec![short, valid]);
    assert_eq!(behind.next_records().await.remove(0).id, b"valid");
}

#[tokio::test]
async fn override_of_a_node_with_a_wrong_clock_applies_on_time() {
    let server = RedisServer::start();
    let (hour, minute) = (TimeSpan::from_secs(3_600), TimeSpan::from_secs(60));
    let limit = |requests| Limit::new(Algorithm::FixedWindow, Spec::new(requests, hour)).unwrap();
    let (narrow, wide) = (limit(10), limit(1_000));
    for coordination in [Coordination::Central, Coordination::Lease, Coordination::Sync] {
        for (ahead, behind) in [(hour, TimeSpan::ZERO), (TimeSpan::ZERO, hour)] {
            let clock = Arc::new(SkewedClock::new(ahead, behind));
            let node = Node::with_clock(&server, Arc::clone(&clock) as Arc<dyn Clock>).await;
            let rule = RuleId::named("default");
            let settings = RuleSettings { rule, coordination, on_store_failure: StoreFailureMode::Deny };
            node.store.apply_settings(&[settings]);
            let client = format!("{coordination:?} {ahead:?}");
            let check = Check::new(CounterKey::new(rule, client.as_bytes()), &narrow);
            let capacity = async |until| {
                let replacement = Override { limit: wide, until };
                node.store.override_limit(check.key, Some(replacement), clock.now()).await.unwrap();
                node.store.peek(&[check], clock.now()).await.unwrap().outcomes[0].limit
            };
            assert_eq!(capacity(clock.now() + minute).await, 1_000, "{client}");
            assert_eq!(capacity(clock.now() - minute).await, 10, "{client}: it is over");
        }
    }
}

#[tokio::test]
async fn records_are_shared_again_after_a_key_had_another_type() {
    let server = RedisServer::start();
    let (sender, mut receiver) = (Node::start(&server).await, Node::start(&server).await);
    for key in ["records", "changes", "expiry"] {
        let name = format!("tg:{{shared}}{key}");
        server.command(&["SET", &name, "text"]);
        sender.records.publish(vec![record(key.as_bytes(), None)]);
        let records = receiver.next_records().await;
        assert!(records.iter().any(|record| record.id == key.as_bytes()), "{key}: {records:?}");
    }
}
