//! Records that nodes share.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_redis::{Endpoint, RedisConfig, RedisStore, SharedRecords};
use tidegate_store::{Clock, RecordExchange, SharedEvent, SharedRecord, SystemClock};
use tidegate_testkit::process::RedisServer;
use tidegate_testkit::wait::within;
use tokio::sync::mpsc;

struct Node {
    /// Dropping it ends the exchange.
    _store: RedisStore,
    records: SharedRecords,
    events: mpsc::Receiver<SharedEvent>,
}

impl Node {
    /// A node that has reached Redis.
    async fn start(server: &RedisServer) -> Self {
        // Longer than by default: a busy machine must not cause an error.
        let timeout = Duration::from_secs(2);
        let config = RedisConfig { timeout, ..RedisConfig::new(Endpoint::parse(&server.url()).unwrap()) };
        let store = RedisStore::new(config, Arc::new(SystemClock::new()));
        let (records, mut events) = store.share_records();
        let first = within("the exchange", events.recv()).await;
        assert_eq!(first, Some(SharedEvent::Attached));
        Self { _store: store, records, events }
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
    sender.records.publish(vec![expired, valid.clone()]);
    assert_eq!(receiver.next_records().await, [valid]);
    let mut raw = crate::raw(&server).await;
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*expiry*").query_async(&mut raw).await.unwrap();
    let stored: u64 = redis::cmd("ZCARD").arg(&keys[0]).query_async(&mut raw).await.unwrap();
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
