//! The link itself: channels, commands, background tasks and its threads.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tidegate_core::Timestamp;
use tidegate_store::{ManualClock, StoreError};
use tidegate_testkit::process::RedisServer;
use tidegate_testkit::wait::within;
use tokio::sync::{mpsc, oneshot};

use super::routes::{RedisServerHealth, RouteTable};
use super::{ChannelEvent, Link};
use crate::config::RedisConfig;
use crate::endpoint::{Endpoint, ServerAddress};
use crate::key::slot_of;

async fn connect(server: &RedisServer) -> Link {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(5)));
    let endpoint = Endpoint::parse(&server.url()).unwrap();
    let link =
        Link::new(RedisConfig { timeout: Duration::from_millis(80), ..RedisConfig::new(endpoint) }, clock);
    within("a connection", link.wait_until_connected()).await;
    link
}

async fn next(events: &mut mpsc::Receiver<ChannelEvent>) -> Option<ChannelEvent> {
    within("an event of the channel", events.recv()).await
}

#[tokio::test]
async fn subscription_is_renewed_after_the_server_restarts() {
    let mut server = RedisServer::start();
    let link = connect(&server).await;
    let mut events = link.subscribe("tg:news");
    assert_eq!(next(&mut events).await, Some(ChannelEvent::Subscribed));
    server.command(&["PUBLISH", "tg:news", "first"]);
    assert_eq!(next(&mut events).await, Some(ChannelEvent::Message(b"first".to_vec())));
    server.kill();
    assert_eq!(next(&mut events).await, Some(ChannelEvent::Lost));
    server.restart();
    assert_eq!(next(&mut events).await, Some(ChannelEvent::Subscribed));
    server.command(&["PUBLISH", "tg:news", "second"]);
    assert_eq!(next(&mut events).await, Some(ChannelEvent::Message(b"second".to_vec())));
}

#[tokio::test]
async fn subscription_follows_the_routes_although_the_old_server_responds() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let link = connect(&old).await;
    let mut events = link.subscribe("tg:news");
    assert_eq!(next(&mut events).await, Some(ChannelEvent::Subscribed));
    let address = ServerAddress { host: "127.0.0.1".to_owned(), port: new.address().port() };
    let routes = RouteTable::Single(Arc::new(RedisServerHealth::new(address)));
    link.shared.routes.store(Arc::new(routes));
    assert_eq!(next(&mut events).await, Some(ChannelEvent::Lost));
    assert_eq!(next(&mut events).await, Some(ChannelEvent::Subscribed));
    new.command(&["PUBLISH", "tg:news", "first"]);
    assert_eq!(next(&mut events).await, Some(ChannelEvent::Message(b"first".to_vec())));
}

#[tokio::test]
async fn command_returns_its_reply_and_an_error_reply_is_a_protocol_error() {
    let server = RedisServer::start();
    let link = connect(&server).await;
    let mut set = redis::cmd("SET");
    set.arg("tg:x").arg("1");
    assert_eq!(link.command(slot_of(b"tg:x"), &set).await.unwrap(), Value::Okay);
    let mut push = redis::cmd("LPUSH");
    push.arg("tg:x").arg("1");
    let error = link.command(slot_of(b"tg:x"), &push).await.unwrap_err();
    assert!(matches!(&error, StoreError::Protocol { reason } if reason.contains("WRONGTYPE")), "{error:?}");
    assert_eq!((link.report().error_replies, link.report().servers_open), (1, 0));
    assert!(link.is_available() && !link.has_slots());
    assert_eq!(link.clock().now(), Timestamp::from_secs(5));
}

#[tokio::test]
async fn background_task_ends_when_the_link_is_dropped() {
    let server = RedisServer::start();
    let link = connect(&server).await;
    let (sender, ended) = oneshot::channel::<()>();
    link.spawn(async move {
        std::future::pending::<()>().await;
        drop(sender);
    });
    drop(link);
    assert!(within("the end of the task", ended).await.is_err(), "its sender was dropped");
}

#[tokio::test]
async fn callers_are_freed_if_the_thread_hangs() {
    let server = RedisServer::start();
    let link = connect(&server).await;
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    link.spawn(async move {
        // It ends when the sender is dropped.
        let _ = blocked.recv();
    });
    let result = within("a result", link.command(0, &redis::cmd("PING"))).await;
    assert!(matches!(result, Err(StoreError::Unavailable(_))), "{result:?}");
    drop(release);
}
