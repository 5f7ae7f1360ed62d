//! Timeouts of an upstream.

use std::sync::Arc;

use tidegate_core::TimeSpan;
use tidegate_store::Clock;
use tidegate_testkit::server::{AcceptLoop, RecordingServer, Reply, ok, silent_http1};
use tidegate_testkit::wait::eventually;

use super::{GET, LIMIT, manual_clock, policy};
use crate::fixture::{ResourceLimits, TestGateway};

#[tokio::test]
async fn request_timeout_applies_to_its_upstream_only() {
    let silent = silent_http1().await;
    let working = RecordingServer::start().await;
    let policy = format!(
        "upstreams:\n  slow: {{ servers: [{}], timeouts: {{ request: 50ms }} }}\n  app: {{ servers: [{}] }}\n\
         routes: [{{ path: /slow, upstream: slow }}, {{ upstream: app }}]\n{LIMIT}\n",
        silent.url(),
        working.url()
    );
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    let response = gateway.get_raw("/slow").await;
    assert_eq!((response.status, response.header("retry-after")), (504, Some("1")));
    assert!(response.text().contains("upstream_timeout"), "{}", response.text());
    assert_eq!(gateway.get_raw("/").await.status, 200);
}

#[tokio::test]
async fn connect_timeout_includes_the_tls_handshake() {
    let silent = AcceptLoop::start(|_, stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let url = format!("https://{}", silent.address);
    let policy = policy(&[url], "timeouts: { connect: 50ms }", LIMIT);
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    let response = gateway.get_raw("/").await;
    assert_eq!(response.status, 502, "{}", response.text());
    assert!(response.text().contains("upstream_unreachable"), "{}", response.text());
}

#[tokio::test]
async fn total_timeout_bounds_all_attempts() {
    let hangs = RecordingServer::scripted(|_| Reply::Hang(Vec::new())).await;
    let settings = "timeouts: { request: 40ms, total: 200ms }, \
                    retry: { attempts: 10, on: [timeout], base: 1ms, cap: 2ms }, eject: off";
    let gateway = TestGateway::start(&policy(&[hangs.url()], settings, LIMIT), ResourceLimits::default());
    let response = gateway.send_raw(GET).await;
    assert_eq!(response.status, 504, "{}", response.text());
    let attempts = hangs.count();
    assert!((2..=6).contains(&attempts), "{attempts}");
}

#[tokio::test]
async fn total_timeout_includes_the_wait_for_the_bulkhead() {
    let server = RecordingServer::replying(|request| match request.target.as_str() {
        "/hang" => Reply::Hang(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na".into()),
        _ => ok("ok"),
    })
    .await;
    let clock = manual_clock();
    let settings = "timeouts: { total: 5s }, bulkhead: { concurrent: 1, queue: 1, wait: 60s }";
    let text = policy(&[server.url()], settings, LIMIT);
    let gateway = TestGateway::start_at(Arc::clone(&clock) as Arc<dyn Clock>, &text);
    let (mut holder, mut waiting) = (gateway.client().await, gateway.client().await);
    holder.send(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    holder.first_bytes().await;
    waiting.send(GET.as_bytes()).await;
    eventually("it waits", || gateway.bulkhead().waiting == 1).await;
    clock.advance(TimeSpan::from_secs(6));
    drop(holder);
    let response = waiting.response().await.expect("a response");
    assert_eq!((response.status, server.count()), (504, 1), "nothing is left of the total time");
}

#[tokio::test]
async fn idle_timeout_of_an_upstream_closes_its_connections() {
    let upstream = RecordingServer::scripted(|_| ok("ok")).await;
    let policy = policy(&[upstream.url()], "timeouts: { idle: 100ms }", LIMIT);
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    assert_eq!(gateway.get_raw("/").await.status, 200);
    upstream.until("it is closed", |counts| counts.open == 0).await;
    assert_eq!(gateway.get_raw("/").await.status, 200);
    assert_eq!(upstream.connections(), 2);
}
