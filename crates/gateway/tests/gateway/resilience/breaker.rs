//! Circuit breakers and what replaces an upstream while they are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{BreakerState, TimeSpan};
use tidegate_gateway::{BreakerCommand, BreakerCommandError};
use tidegate_store::{Clock, ManualClock};
use tidegate_testkit::server::{RecordingServer, Reply, ok};
use tidegate_testkit::wait::eventually;

use super::{GET, LIMIT, manual_clock, policy, status};
use crate::fixture::{ResourceLimits, TestGateway};

/// Responds 500 while the switch is on.
async fn switchable() -> (Arc<AtomicBool>, RecordingServer) {
    let fails = Arc::new(AtomicBool::new(true));
    let shared = Arc::clone(&fails);
    let server = RecordingServer::scripted(move |_| {
        if shared.load(Ordering::SeqCst) {
            Reply::Keep(status("500 Internal Server Error", ""))
        } else {
            ok("ok")
        }
    });
    (fails, server.await)
}

const BREAKER: &str = "breaker: { failures: 5, open_for: 30s }";

fn at(clock: &Arc<ManualClock>, text: &str) -> TestGateway {
    TestGateway::start_at(Arc::clone(clock) as Arc<dyn Clock>, text)
}

#[tokio::test]
async fn five_failures_open_the_breaker_and_after_the_open_time_one_probe_decides() {
    for scope in ["server", "upstream"] {
        let (fails, server) = switchable().await;
        let clock = manual_clock();
        let settings = format!("breaker: {{ failures: 5, open_for: 30s, per: {scope} }}");
        let gateway = at(&clock, &policy(&[server.url()], &settings, LIMIT));
        for _ in 0..5 {
            assert_eq!(gateway.send_raw(GET).await.status, 500);
        }
        for turn in 0..20 {
            let response = gateway.send_raw(GET).await;
            assert_eq!(response.status, 503);
            assert!(response.text().contains("breaker_open"), "{}", response.text());
            let seconds: u64 = response.header("retry-after").expect("a wait").parse().expect("a number");
            assert!((30..=33).contains(&seconds), "{seconds}");
            assert!(turn > 0 || response.remaining() >= 994, "{}", response.remaining());
        }
        assert_eq!(server.count(), 5);
        clock.advance(TimeSpan::from_secs(34));
        assert_eq!(gateway.send_raw(GET).await.status, 500, "the probe fails");
        assert_eq!(gateway.send_raw(GET).await.status, 503);
        clock.advance(TimeSpan::from_secs(34));
        fails.store(false, Ordering::SeqCst);
        for _ in 0..5 {
            assert_eq!(gateway.send_raw(GET).await.status, 200);
        }
        assert_eq!(server.count(), 11, "{scope}");
    }
}

#[tokio::test]
async fn client_that_sends_its_body_slowly_does_not_make_the_server_slow() {
    let server = RecordingServer::start().await;
    let clock = manual_clock();
    let settings = "breaker: { slow: { over: 2s, rate: 80% }, min_calls: 10, window: 60s }";
    let gateway = at(&clock, &policy(&[server.url()], settings, LIMIT));
    let in_flight = || gateway.upstream().servers[0].in_flight;
    for _ in 0..20 {
        let mut slow = gateway.client().await;
        slow.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na").await;
        eventually("it is sent", || in_flight() == 1).await;
        clock.advance(TimeSpan::from_secs(2));
        slow.send(b"b").await;
        assert_eq!(slow.response().await.map(|response| response.status), Some(200));
        eventually("it has ended", || in_flight() == 0).await;
    }
    let breaker = gateway.upstream().servers[0].breaker.expect("a breaker");
    assert_eq!(breaker.state, BreakerState::Closed);
}

#[tokio::test]
async fn server_with_an_open_breaker_is_skipped() {
    let (_fails, failing) = switchable().await;
    let working = RecordingServer::start().await;
    let settings = format!("{BREAKER}, eject: off");
    let gateway = at(&manual_clock(), &policy(&[failing.url(), working.url()], &settings, LIMIT));
    for _ in 0..40 {
        gateway.send_raw(GET).await;
    }
    assert_eq!((failing.count(), working.count()), (5, 35));
    let servers = gateway.upstream().servers;
    let states = [0, 1].map(|index| servers[index].breaker.expect("a breaker").state);
    assert_eq!(states, [BreakerState::Open, BreakerState::Closed]);
}

#[tokio::test]
async fn request_rejected_by_the_breaker_is_refunded() {
    let (_fails, server) = switchable().await;
    let gateway = at(&manual_clock(), &policy(&[server.url()], BREAKER, LIMIT));
    for _ in 0..5 {
        gateway.send_raw(GET).await;
    }
    let mut client = gateway.client().await;
    for _ in 0..20 {
        client.send(GET.as_bytes()).await;
        assert_eq!(client.response().await.map(|response| response.status), Some(503));
    }
    gateway.force_breaker("app", None, BreakerCommand::Reset).expect("a breaker");
    client.send(GET.as_bytes()).await;
    let remaining = client.response().await.expect("a response").remaining();
    assert_eq!(remaining, 994, "six requests were sent");
}

#[tokio::test]
async fn client_errors_never_open_the_breaker() {
    for code in ["400 Bad Request", "404 Not Found", "429 Too Many Requests"] {
        let server = RecordingServer::scripted(move |_| Reply::Keep(status(code, ""))).await;
        let gateway = at(&manual_clock(), &policy(&[server.url()], "breaker: { failures: 1 }", LIMIT));
        for _ in 0..10 {
            gateway.send_raw(GET).await;
        }
        assert_eq!(server.count(), 10, "{code}");
    }
}

#[tokio::test]
async fn fallback_response_replaces_the_error_while_the_breaker_is_open() {
    let (_fails, server) = switchable().await;
    let settings = "breaker: { failures: 1 }, fallback: { status: 200, body: down.json }";
    let text = policy(&[server.url()], settings, LIMIT);
    let gateway = TestGateway::with_files(&text, &[("down.json", "{\"down\":true}")]);
    assert_eq!(gateway.send_raw(GET).await.status, 500);
    let response = gateway.send_raw(GET).await;
    assert_eq!((response.status, response.text().as_str()), (200, "{\"down\":true}"));
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("retry-after"), None);
}

#[tokio::test]
async fn fallback_upstream_gets_the_requests_while_the_breaker_is_open() {
    let (_fails, failing) = switchable().await;
    let other = RecordingServer::start().await;
    let text = format!(
        "upstreams:\n  app: {{ servers: [{}], breaker: {{ failures: 1 }}, fallback: {{ upstream: spare }} }}\n  \
         spare: {{ servers: [{}] }}\nroutes: [{{ upstream: app }}]\n{LIMIT}\n",
        failing.url(),
        other.url()
    );
    let gateway = TestGateway::start(&text, ResourceLimits::default());
    assert_eq!(gateway.send_raw(GET).await.status, 500);
    for request in [GET, super::POST] {
        assert_eq!(gateway.send_raw(request).await.status, 200);
    }
    assert_eq!((failing.count(), other.count(), other.last().body.as_slice()), (1, 2, &b"abc"[..]));
}

#[tokio::test]
async fn breaker_is_commanded_by_operators() {
    let server = RecordingServer::start().await;
    let text = policy(&[server.url()], BREAKER, LIMIT);
    let gateway = TestGateway::start(&text, ResourceLimits::default());
    let (address, upstream) = (server.address.to_string(), "app".to_owned());
    gateway.force_breaker("app", Some(&address), BreakerCommand::Open).expect("a breaker");
    assert_eq!(gateway.send_raw(GET).await.status, 503);
    gateway.replace_policy(&text.replace("1000", "2000"));
    assert_eq!(gateway.send_raw(GET).await.status, 503, "a reload keeps it");
    gateway.force_breaker("app", Some(&server.url()), BreakerCommand::Reset).expect("a breaker");
    assert_eq!(gateway.send_raw(GET).await.status, 200);
    let unknown = gateway.force_breaker("x", None, BreakerCommand::Open);
    assert_eq!(unknown, Err(BreakerCommandError::UnknownUpstream { upstream: "x".to_owned() }));
    let unknown = gateway.force_breaker("app", Some("x"), BreakerCommand::Open);
    let server = "x".to_owned();
    assert_eq!(unknown, Err(BreakerCommandError::UnknownServer { upstream: upstream.clone(), server }));
    gateway.replace_policy(&text.replace(BREAKER, ""));
    let none = gateway.force_breaker("app", None, BreakerCommand::Open);
    assert_eq!(none, Err(BreakerCommandError::NoBreaker { upstream }));
}
