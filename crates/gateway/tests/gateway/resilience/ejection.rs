//! Servers that fail in a row get no requests for a while.

use std::sync::Arc;

use tidegate_core::TimeSpan;
use tidegate_store::Clock;
use tidegate_testkit::server::{RecordingServer, Reply, ok};

use super::{GET, LIMIT, POST, manual_clock, policy, status};
use crate::fixture::{ResourceLimits, TestGateway};

#[tokio::test]
async fn server_that_fails_in_a_row_gets_no_requests_until_its_ejection_ends() {
    let failing = RecordingServer::scripted(|_| Reply::Keep(status("503 Service Unavailable", ""))).await;
    let working = RecordingServer::start().await;
    let clock = manual_clock();
    let policy = policy(&[failing.url(), working.url()], "eject: { after: 3, for: 10s }", LIMIT);
    let gateway = TestGateway::start_at(Arc::clone(&clock) as Arc<dyn Clock>, &policy);
    for _ in 0..50 {
        gateway.send_raw(GET).await;
    }
    assert_eq!(failing.count(), 3);
    let ejected_for = gateway.upstream().servers[0].ejected_for;
    assert_eq!(ejected_for, Some(TimeSpan::from_secs(10)));
    clock.advance(TimeSpan::from_secs(11));
    assert_eq!(gateway.upstream().servers[0].ejected_for, None);
    for _ in 0..50 {
        gateway.send_raw(GET).await;
    }
    let returned = failing.count() - 3;
    assert!((1..=3).contains(&returned), "a small share at first, {returned}");
}

#[tokio::test]
async fn only_server_is_never_ejected() {
    let failing = RecordingServer::scripted(|_| Reply::Keep(status("500 Internal Server Error", ""))).await;
    let gateway = TestGateway::start(&policy(&[failing.url()], "", LIMIT), ResourceLimits::default());
    for _ in 0..20 {
        assert_eq!(gateway.send_raw(GET).await.status, 500);
    }
    assert_eq!((failing.count(), gateway.upstream().servers[0].ejected_for), (20, None));
}

#[tokio::test]
async fn unreachable_server_is_ejected_and_no_request_fails() {
    let (down, up) = (RecordingServer::unreachable(), RecordingServer::scripted(|_| ok("ok")).await);
    let policy = policy(&[down.url(), up.url()], "", LIMIT);
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    for _ in 0..30 {
        assert_eq!(gateway.send_raw(POST).await.status, 200);
    }
    assert!(gateway.upstream().servers[0].ejected_for.is_some());
    let unreachable = "tidegate_upstream_failures_total{upstream=\"app\",reason=\"unreachable\"}";
    assert_eq!(gateway.metric(unreachable), 5, "then it is ejected");
    assert_eq!(gateway.upstream().retries, 0, "a request that moves needs no budget");
}

#[tokio::test]
async fn reload_keeps_an_ejection() {
    let failing = RecordingServer::scripted(|_| Reply::Keep(status("503 Service Unavailable", ""))).await;
    let working = RecordingServer::start().await;
    let text = policy(&[failing.url(), working.url()], "", LIMIT);
    let gateway = TestGateway::start(&text, ResourceLimits::default());
    for _ in 0..20 {
        gateway.send_raw(GET).await;
    }
    assert_eq!(failing.count(), 5);
    gateway.replace_policy(&text.replace("1000", "2000"));
    for _ in 0..20 {
        assert_eq!(gateway.send_raw(GET).await.status, 200);
    }
    assert_eq!(failing.count(), 5);
}
