//! A client cannot keep a breaker half-open by delaying its probe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{BreakerState, BreakerStatus, TimeSpan};
use tidegate_store::{Clock, ManualClock};
use tidegate_testkit::server::{RecordingServer, Reply, ok};
use tidegate_testkit::wait::eventually;

use super::{GET, POST, manual_clock, policy, status};
use crate::fixture::TestGateway;

const ATTACKER: [u8; 4] = [127, 0, 0, 2];
/// The second limit shows that a request was admitted.
const LIMITS: &str =
    "rate_limits: { default: { requests: 1000, window: 1d }, rules: [{ name: any, concurrent: 100 }] }";
const HANGING: &[u8] = b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n";

/// A gateway whose breaker has opened and may be probed, and a server that works again. It never responds to `/hang`.
struct Recovered {
    gateway: TestGateway,
    clock: Arc<ManualClock>,
    server: RecordingServer,
}

impl Recovered {
    async fn start(more: &str) -> Self {
        Self::start_with("probes: 1", more).await
    }

    async fn start_with(probes: &str, more: &str) -> Self {
        let fails = Arc::new(AtomicBool::new(true));
        let shared = Arc::clone(&fails);
        let server = RecordingServer::replying(move |request| match request.target.as_str() {
            _ if shared.load(Ordering::SeqCst) => Reply::Keep(status("500 Internal Server Error", "")),
            "/hang" => Reply::Hang(Vec::new()),
            _ => ok("ok"),
        })
        .await;
        let clock = manual_clock();
        let settings = format!("eject: off, breaker: {{ failures: 1, open_for: 30s, {probes} }}, {more}");
        let text = policy(&[server.url()], &settings, LIMITS);
        let gateway = TestGateway::start_at(Arc::clone(&clock) as Arc<dyn Clock>, &text);
        assert_eq!(gateway.send_raw(GET).await.status, 500);
        clock.advance(TimeSpan::from_secs(34));
        fails.store(false, Ordering::SeqCst);
        Self { gateway, clock, server }
    }

    fn breaker(&self) -> BreakerStatus {
        self.gateway.upstream().servers[0].breaker.expect("a breaker")
    }
}

#[tokio::test]
async fn client_that_does_not_complete_its_body_does_not_keep_the_probe() {
    for sent in [3, 200_000] {
        let recovered = Recovered::start("timeouts: { request: 60s }").await;
        let mut attacker = recovered.gateway.client_from(ATTACKER).await;
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
        attacker.send(&[head.as_slice(), &vec![b'x'; sent]].concat()).await;
        eventually("it is admitted", || recovered.gateway.permits_in_use() == 1).await;
        if sent > 100_000 {
            eventually("it is sent", || recovered.gateway.upstream().servers[0].in_flight == 1).await;
        }
        let response = recovered.gateway.send_raw(GET).await;
        assert_eq!(response.status, 200, "another request is the probe: {}", response.text());
        assert_eq!(recovered.breaker().state, BreakerState::Closed, "{sent}");
    }
}

#[tokio::test]
async fn uploads_of_any_size_close_the_breaker() {
    for length in [0, 1, 60_000, 500_000] {
        let recovered = Recovered::start("timeouts: { request: 60s }").await;
        let mut client = recovered.gateway.client().await;
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        client.send(head.as_bytes()).await;
        client.send(&vec![b'x'; length]).await;
        assert_eq!(client.response().await.map(|response| response.status), Some(200), "{length}");
        assert_eq!(recovered.breaker().state, BreakerState::Closed, "{length}");
        assert_eq!(recovered.server.last().body.len(), length);
    }
}

#[tokio::test]
async fn time_in_which_a_client_sends_the_body_of_a_probe_does_not_count() {
    let recovered = Recovered::start("timeouts: { request: 10s, total: 10s }").await;
    let mut client = recovered.gateway.client().await;
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na").await;
    eventually("it is admitted", || recovered.gateway.permits_in_use() == 1).await;
    recovered.clock.advance(TimeSpan::from_secs(11));
    client.send(b"b").await;
    assert_eq!(client.response().await.map(|response| response.status), Some(200));
    assert_eq!(recovered.breaker().state, BreakerState::Closed);
}

#[tokio::test]
async fn body_that_was_received_for_a_probe_of_another_request_reaches_the_fallback() {
    let spare = RecordingServer::start().await;
    let fallback = format!(
        "timeouts: {{ request: 60s }}, fallback: {{ upstream: spare }} }}, spare: {{ servers: [{}]",
        spare.url()
    );
    let recovered = Recovered::start(&fallback).await;
    let mut client = recovered.gateway.client().await;
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").await;
    eventually("it is admitted", || recovered.gateway.permits_in_use() == 1).await;
    let mut other = recovered.gateway.client_from(ATTACKER).await;
    other.send(HANGING).await;
    eventually("another request is the probe", || recovered.breaker().probes == 1).await;
    client.send(b"def").await;
    assert_eq!(client.response().await.map(|response| response.status), Some(200));
    assert_eq!((spare.count(), spare.last().body), (1, b"abcdef".to_vec()));
}

#[tokio::test]
async fn upload_that_lasts_longer_than_the_timeout_keeps_no_slot_and_closes_the_breaker() {
    let recovered = Recovered::start("timeouts: { request: 50ms }").await;
    let in_flight = || recovered.gateway.upstream().servers[0].in_flight;
    let part = vec![b'x'; 100_000];
    let start = [b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n", &part[..]].concat();
    let mut first = recovered.gateway.client().await;
    first.send(&start).await;
    eventually("it is sent", || in_flight() == 1).await;
    let _second = loop {
        let mut second = recovered.gateway.client().await;
        second.send(&start).await;
        tokio::select! {
            response = second.response() => assert_eq!(response.map(|response| response.status), Some(503)),
            () = eventually("the slot is free", || in_flight() == 2) => break second,
        }
    };
    first.send(&part).await;
    assert_eq!(first.response().await.map(|response| response.status), Some(200));
    assert_eq!(recovered.breaker().state, BreakerState::Closed);
}

#[tokio::test]
async fn client_that_gives_up_its_probe_leaves_the_next_one_to_others() {
    let recovered = Recovered::start("timeouts: { request: 60s }").await;
    let mut attacker = recovered.gateway.client_from(ATTACKER).await;
    attacker.send(HANGING).await;
    eventually("it is the probe", || recovered.breaker().probes == 1).await;
    drop(attacker);
    eventually("it is cancelled", || recovered.breaker().probes == 0).await;
    let mut attacker = recovered.gateway.client_from(ATTACKER).await;
    attacker.send(HANGING).await;
    assert_eq!(attacker.response().await.map(|response| response.status), Some(503));
    assert_eq!(recovered.gateway.send_raw(GET).await.status, 200, "another request is the probe");
}

#[tokio::test]
async fn client_whose_probe_hangs_leaves_the_one_that_replaces_it_to_others() {
    let recovered = Recovered::start("timeouts: { request: 1h, total: 1h }").await;
    let mut hanging = recovered.gateway.client_from(ATTACKER).await;
    hanging.send(HANGING).await;
    eventually("it is the probe", || recovered.breaker().probes == 1).await;
    recovered.clock.advance(TimeSpan::from_secs(1));
    for _ in 0..3 {
        let mut attacker = recovered.gateway.client_from(ATTACKER).await;
        attacker.send(HANGING).await;
        assert_eq!(attacker.response().await.map(|response| response.status), Some(503));
    }
    assert_eq!(recovered.gateway.send_raw(GET).await.status, 200, "another request is the probe");
    assert_eq!(recovered.breaker().state, BreakerState::Closed);
}

#[tokio::test]
async fn client_that_is_alone_replaces_its_probe_that_hangs_after_another_second() {
    let recovered = Recovered::start("timeouts: { request: 1h, total: 1h }").await;
    let mut hanging = recovered.gateway.client().await;
    hanging.send(HANGING).await;
    eventually("it is the probe", || recovered.breaker().probes == 1).await;
    recovered.clock.advance(TimeSpan::from_secs(1));
    assert_eq!(recovered.gateway.send_raw(GET).await.status, 503);
    recovered.clock.advance(TimeSpan::from_secs(1));
    assert_eq!(recovered.gateway.send_raw(GET).await.status, 200);
    assert_eq!(recovered.breaker().state, BreakerState::Closed);
}

#[tokio::test]
async fn client_that_is_alone_closes_a_breaker_that_needs_several_probes() {
    let recovered = Recovered::start_with("probes: 2, successes: 3", "timeouts: { request: 60s }").await;
    for _ in 0..3 {
        assert_eq!(recovered.gateway.send_raw(GET).await.status, 200);
    }
    assert_eq!(recovered.breaker().state, BreakerState::Closed);
}

#[tokio::test]
async fn client_that_is_alone_probes_again_after_a_second() {
    let recovered = Recovered::start("timeouts: { request: 60s }").await;
    let mut client = recovered.gateway.client().await;
    client.send(HANGING).await;
    eventually("it is the probe", || recovered.breaker().probes == 1).await;
    drop(client);
    eventually("it is cancelled", || recovered.breaker().probes == 0).await;
    assert_eq!(recovered.gateway.send_raw(POST).await.status, 503);
    recovered.clock.advance(TimeSpan::from_secs(1));
    assert_eq!(recovered.gateway.send_raw(POST).await.status, 200);
}
