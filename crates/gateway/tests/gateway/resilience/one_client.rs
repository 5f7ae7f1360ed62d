//! While others succeed, the failures of one client open no breaker and eject no server.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tidegate_core::TimeSpan;
use tidegate_store::{Clock, ManualClock};
use tidegate_testkit::server::{HttpServer, RecordingServer, Reply, full, ok};
use tokio::sync::watch;

use super::{GET, LIMIT, manual_clock, policy};
use crate::fixture::TestGateway;

const REFUSED: &[u8] = b"GET /refused HTTP/1.1\r\nHost: a\r\n\r\n";
const UNWANTED_UPGRADE: &[u8] =
    b"GET /refused HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const CLIENT: [u8; 4] = [127, 0, 0, 2];

/// A server that closes the connection of a request for `/refused`, as nginx does with `return 444`.
async fn refusing() -> RecordingServer {
    RecordingServer::replying(|request| match request.target.as_str() {
        "/refused" => Reply::Close(Vec::new()),
        _ => ok("ok"),
    })
    .await
}

fn at(clock: &Arc<ManualClock>, text: &str) -> TestGateway {
    TestGateway::start_at(Arc::clone(clock) as Arc<dyn Clock>, text)
}

async fn fail(gateway: &TestGateway, source: [u8; 4], request: &[u8]) {
    let mut client = gateway.client_from(source).await;
    client.send(request).await;
    assert_eq!(client.response().await.map(|response| response.status), Some(502));
}

fn opened(gateway: &TestGateway) -> u64 {
    let upstream = gateway.upstream();
    let own = upstream.servers.iter().filter_map(|server| server.breaker);
    own.chain(upstream.breaker).map(|breaker| breaker.opened).sum()
}

#[tokio::test]
async fn client_whose_requests_servers_refuse_harms_no_server_while_others_succeed() {
    for breaker in [
        "failures: 1",
        "failures: 5",
        "failures: 5, per: upstream",
        "failure_rate: 50%, min_calls: 4, window: 10s",
    ] {
        let servers = [refusing().await, refusing().await];
        let settings = format!("breaker: {{ {breaker} }}, eject: {{ after: 5 }}");
        let text = policy(&servers.each_ref().map(RecordingServer::url), &settings, LIMIT);
        let gateway = at(&manual_clock(), &text);
        for _ in 0..4 {
            assert_eq!(gateway.send_raw(GET).await.status, 200);
        }
        for _ in 0..15 {
            fail(&gateway, CLIENT, REFUSED).await;
            fail(&gateway, CLIENT, UNWANTED_UPGRADE).await;
        }
        assert_eq!(opened(&gateway), 0, "{breaker}");
        assert!(gateway.upstream().servers.iter().all(|server| server.ejected_for.is_none()), "{breaker}");
        assert_eq!(gateway.send_raw(GET).await.status, 200, "{breaker}");
    }
}

#[tokio::test]
async fn failures_of_two_clients_open_the_breaker_although_a_third_has_succeeded() {
    let server = refusing().await;
    let gateway =
        at(&manual_clock(), &policy(&[server.url()], "breaker: { failures: 5 }, retry: off", LIMIT));
    assert_eq!(gateway.send_raw(GET).await.status, 200);
    for turn in 0..3 {
        assert_eq!(opened(&gateway), 0, "{turn}");
        fail(&gateway, CLIENT, REFUSED).await;
        fail(&gateway, [127, 0, 0, 3], REFUSED).await;
    }
    assert_eq!(opened(&gateway), 1);
}

#[tokio::test]
async fn client_is_not_alone_while_requests_of_others_succeed_that_take_long() {
    let (release, released) = watch::channel(false);
    let server = HttpServer::start(move |request: Request<Incoming>| {
        let mut released = released.clone();
        async move {
            let is_slow = request.uri().path() == "/slow";
            if is_slow {
                let _ = released.wait_for(|released| *released).await;
            }
            let status = if is_slow { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            let mut response = Response::new(full("done"));
            *response.status_mut() = status;
            response
        }
    })
    .await;
    let clock = manual_clock();
    let gateway = at(&clock, &policy(&[server.url()], "breaker: { failures: 5 }, retry: off", LIMIT));
    let mut other = gateway.client().await;
    other.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
    server.first_request().await;
    clock.advance(TimeSpan::from_secs(30));
    release.send_replace(true);
    assert_eq!(other.response().await.map(|response| response.status), Some(200));
    for _ in 0..10 {
        let mut client = gateway.client_from(CLIENT).await;
        client.send(GET.as_bytes()).await;
        assert_eq!(client.response().await.map(|response| response.status), Some(500));
    }
    assert_eq!(opened(&gateway), 0);
}

#[tokio::test]
async fn client_that_is_alone_opens_the_breaker() {
    let (server, clock) = (refusing().await, manual_clock());
    let gateway = at(&clock, &policy(&[server.url()], "breaker: { failures: 5 }, retry: off", LIMIT));
    assert_eq!(gateway.send_raw(GET).await.status, 200, "another client, a while ago");
    clock.advance(TimeSpan::from_secs(10));
    for _ in 0..5 {
        assert_eq!(opened(&gateway), 0);
        fail(&gateway, CLIENT, REFUSED).await;
    }
    assert_eq!(opened(&gateway), 1);
}

#[tokio::test]
async fn request_and_its_retry_count_once() {
    for scope in ["server", "upstream"] {
        let servers = [refusing().await, refusing().await];
        let settings = format!("breaker: {{ failures: 5, per: {scope} }}, retry: {{ attempts: 4 }}");
        let text = policy(&servers.each_ref().map(RecordingServer::url), &settings, LIMIT);
        let gateway = at(&manual_clock(), &text);
        fail(&gateway, CLIENT, REFUSED).await;
        assert_eq!(servers[0].count() + servers[1].count(), 4);
        let upstream = gateway.upstream();
        let own = upstream.servers.iter().filter_map(|server| server.breaker);
        let counts: Vec<_> =
            own.chain(upstream.breaker).map(|breaker| breaker.consecutive_failures).collect();
        assert!(counts.iter().all(|count| *count == 1), "{scope}: {counts:?}");
    }
}

#[tokio::test]
async fn client_whose_requests_fail_leaves_half_of_the_retries_to_others() {
    let server = refusing().await;
    let gateway = at(&manual_clock(), &policy(&[server.url()], "eject: off", LIMIT));
    assert_eq!(gateway.send_raw(GET).await.status, 200);
    for _ in 0..30 {
        fail(&gateway, CLIENT, REFUSED).await;
    }
    let upstream = gateway.upstream();
    // Half of the budget, rounded up.
    assert!(upstream.retries > 0 && upstream.retries <= upstream.retry_budget_left + 1, "{upstream:?}");
}
