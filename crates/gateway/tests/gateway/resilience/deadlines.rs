//! Deadlines of clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::{Clock, ClockReading, ManualClock};
use tidegate_testkit::client::{CollectedResponse, http2};
use tidegate_testkit::server::{AcceptLoop, RecordingServer, Reply, silent_http1};
use tidegate_testkit::wait::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{GET, LIMIT, policy, status};
use crate::fixture::{ResourceLimits, TestGateway};

fn get(headers: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n")
}

#[tokio::test]
async fn deadline_that_has_passed_is_neither_served_nor_charged() {
    let server = RecordingServer::start().await;
    let gateway = TestGateway::start(&policy(&[server.url()], "", LIMIT), ResourceLimits::default());
    for header in
        ["X-Request-Deadline-Ms: 0\r\n", "X-Envoy-Expected-Rq-Timeout-Ms: 0\r\n", "grpc-timeout: 0m\r\n"]
    {
        let response = gateway.send_raw(&get(header)).await;
        assert_eq!((response.status, response.header("retry-after")), (504, Some("1")), "{header}");
        assert!(response.text().contains("deadline_exceeded"), "{}", response.text());
    }
    assert_eq!(gateway.send_raw(GET).await.remaining(), 999);
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn deadline_ends_an_exchange_and_closes_its_connection() {
    let silent = RecordingServer::scripted(|_| Reply::Hang(Vec::new())).await;
    let gateway = TestGateway::start(&policy(&[silent.url()], "", LIMIT), ResourceLimits::default());
    let response = gateway.send_raw(&get("X-Request-Deadline-Ms: 50\r\n")).await;
    assert_eq!(response.status, 504);
    assert!(response.text().contains("deadline_exceeded"), "{}", response.text());
    silent.until("the exchange is cancelled", |counts| counts.open == 0).await;
}

#[tokio::test]
async fn deadline_ends_a_response_body_that_takes_too_long() {
    let part = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc";
    let server = RecordingServer::scripted(|_| Reply::Hang(part.to_vec())).await;
    let gateway = TestGateway::start(&policy(&[server.url()], "", LIMIT), ResourceLimits::default());
    let mut client = gateway.client().await;
    client.send(get("X-Request-Deadline-Ms: 100\r\n").as_bytes()).await;
    let received = soon(client.rest()).await;
    assert!(received.ends_with(b"abc"), "the part that was received is forwarded");
    server.until("the exchange is cancelled", |counts| counts.open == 0).await;
}

#[tokio::test]
async fn deadline_bounds_the_wait_in_a_queue() {
    let server = RecordingServer::scripted(|_| Reply::Hang(Vec::new())).await;
    let settings = "bulkhead: { concurrent: 1, queue: 5, wait: 1h }";
    let gateway = TestGateway::start(&policy(&[server.url()], settings, LIMIT), ResourceLimits::default());
    let mut holder = gateway.client().await;
    holder.send(GET.as_bytes()).await;
    server.until("the bulkhead is full", |counts| counts.requests == 1).await;
    assert_eq!(gateway.send_raw(&get("X-Request-Deadline-Ms: 50\r\n")).await.status, 504);
    assert_eq!((server.count(), gateway.bulkhead().waiting), (1, 0));
}

#[tokio::test]
async fn delay_beyond_the_deadline_is_rejected_at_once_and_refunded() {
    let server = RecordingServer::start().await;
    let limit = "rate_limits: { default: { requests: 1, window: 10s, algorithm: leaky_bucket, burst: 3 } }";
    let gateway = TestGateway::start(&policy(&[server.url()], "", limit), ResourceLimits::default());
    assert_eq!(gateway.send_raw(GET).await.status, 200);
    for _ in 0..5 {
        let response = gateway.send_raw(&get("X-Request-Deadline-Ms: 1000\r\n")).await;
        assert_eq!(response.status, 504, "{}", response.text());
    }
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn remaining_time_is_forwarded_in_the_headers_that_came_in() {
    let server = RecordingServer::start().await;
    let text = policy(&[server.url()], "", LIMIT);
    let gateway = TestGateway::start_at(super::manual_clock(), &text);
    let names = ["x-request-deadline-ms", "grpc-timeout", "x-envoy-expected-rq-timeout-ms"];
    let cases = [
        ("X-Request-Deadline-Ms: 1500\r\n", [Some("1500"), None, None]),
        ("grpc-timeout: 2S\r\n", [Some("2000"), Some("2000000u"), None]),
        (
            "X-Envoy-Expected-Rq-Timeout-Ms: 300\r\ngrpc-timeout: 2S\r\n",
            [Some("300"), Some("300000u"), Some("300")],
        ),
        ("", [None, None, None]),
    ];
    for (sent, expected) in cases {
        assert_eq!(gateway.send_raw(&get(sent)).await.status, 200);
        let seen = server.last();
        assert_eq!(names.map(|name| seen.header(name)), expected, "{sent:?}");
    }
}

#[tokio::test]
async fn deadline_that_cannot_be_read_is_not_forwarded() {
    let server = RecordingServer::start().await;
    let gateway = TestGateway::start(&policy(&[server.url()], "", LIMIT), ResourceLimits::default());
    for value in ["abc", "-1", "+5", "0x10", "5000, 1", ""] {
        let headers = format!(
            "X-Request-Deadline-Ms: {value}\r\nX-Envoy-Expected-Rq-Timeout-Ms: {value}\r\ngrpc-timeout: {value}\r\n"
        );
        assert_eq!(gateway.send_raw(&get(&headers)).await.status, 200, "{value}");
        let forwarded = server.last();
        for name in ["x-request-deadline-ms", "x-envoy-expected-rq-timeout-ms", "grpc-timeout"] {
            assert_eq!(forwarded.header(name), None, "{name}: {value}");
        }
    }
}

#[tokio::test]
async fn grpc_call_past_its_deadline_gets_deadline_exceeded() {
    let silent = silent_http1().await;
    let gateway = TestGateway::start(&policy(&[silent.url()], "", LIMIT), ResourceLimits::default());
    let mut sender = http2(gateway.address).await;
    for timeout in ["0m", "50m"] {
        let request = Request::post("http://test/a").header("te", "trailers").header("grpc-timeout", timeout);
        let request = request.header("content-type", "application/grpc").body(Empty::<Bytes>::new()).unwrap();
        let response = CollectedResponse::of(soon(sender.send_request(request)).await.unwrap()).await;
        assert_eq!((response.status.as_u16(), response.number("grpc-status")), (200, 4), "{timeout}");
    }
}

/// A clock that moves by five seconds while the first request is checked against its limits.
#[derive(Debug)]
struct SlowDecisionClock {
    time: Arc<ManualClock>,
    is_done: AtomicBool,
}

impl Clock for SlowDecisionClock {
    fn now(&self) -> Timestamp {
        self.time.now()
    }

    fn read(&self) -> ClockReading {
        if !self.is_done.swap(true, Ordering::SeqCst) {
            self.time.advance(TimeSpan::from_secs(5));
        }
        self.time.read()
    }
}

/// Gateways that forward to each other, the first of the chain last. Each takes five seconds for a request.
fn chain(hops: usize, server: &RecordingServer) -> Vec<TestGateway> {
    chain_with(hops, server, "")
}

/// The same with these settings of the upstream of the first gateway.
fn chain_with(hops: usize, server: &RecordingServer, first: &str) -> Vec<TestGateway> {
    let mut gateways: Vec<TestGateway> = Vec::new();
    for hop in 1..=hops {
        let url = gateways.last().map_or_else(|| server.url(), |next| format!("http://{}", next.address));
        let clock = SlowDecisionClock { time: super::manual_clock(), is_done: AtomicBool::new(false) };
        let settings = if hop == hops { first } else { "" };
        gateways.push(TestGateway::start_at(Arc::new(clock), &policy(&[url], settings, LIMIT)));
    }
    gateways
}

#[tokio::test]
async fn chain_of_three_gateways_with_five_seconds_each_leaves_25_20_15() {
    let server = RecordingServer::start().await;
    let mut remaining = Vec::new();
    for hops in 1..=3 {
        let response =
            chain(hops, &server)[hops - 1].send_raw(&get("X-Request-Deadline-Ms: 30000\r\n")).await;
        assert_eq!(response.status, 200, "{}", response.text());
        remaining.push(server.last().header("x-request-deadline-ms").expect("a deadline").to_owned());
    }
    assert_eq!(remaining, ["25000", "20000", "15000"]);
    let late = chain(3, &server)[2].send_raw(&get("X-Request-Deadline-Ms: 14000\r\n")).await;
    assert_eq!((late.status, server.count()), (504, 3), "the last hop does not start");
}

#[tokio::test]
async fn total_timeout_of_the_first_of_three_gateways_leaves_30_25_20() {
    let server = RecordingServer::start().await;
    let mut remaining = Vec::new();
    for hops in 1..=3 {
        let gateways = chain_with(hops, &server, "timeouts: { total: 30s }");
        assert_eq!(gateways[hops - 1].send_raw(GET).await.status, 200);
        let last = server.last();
        assert_eq!(last.header("x-request-deadline-scope"), Some("head"));
        remaining.push(last.header("x-request-deadline-ms").expect("a deadline").to_owned());
    }
    assert_eq!(remaining, ["30000", "25000", "20000"]);
    let late = chain_with(3, &server, "timeouts: { total: 9s }")[2].send_raw(GET).await;
    assert_eq!((late.status, server.count()), (504, 3), "the last hop does not start");
}

#[tokio::test]
async fn total_timeout_starts_no_deadline_unless_it_is_set_and_none_for_upgrades() {
    let server = RecordingServer::start().await;
    let upgrade = get("Connection: upgrade\r\nUpgrade: websocket\r\n");
    for (settings, request, own) in [
        ("", GET, None),
        ("timeouts: { request: 5s }", GET, None),
        ("timeouts: { total: 30s }", &upgrade, None),
        ("timeouts: { total: 30s }", &get("X-Request-Deadline-Ms: 700000\r\n"), Some("700000")),
    ] {
        let gateway = TestGateway::start_at(super::manual_clock(), &policy(&[server.url()], settings, LIMIT));
        assert_eq!(gateway.send_raw(request).await.status, 200);
        let last = server.last();
        assert_eq!(last.header("x-request-deadline-ms"), own, "{settings}");
        assert_eq!(last.header("x-request-deadline-scope"), None, "{settings}");
    }
}

#[tokio::test]
async fn total_timeout_ends_with_the_head_of_the_response_over_two_gateways() {
    let (part, rest) = (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", b"defghi");
    let (release, released) = tokio::sync::oneshot::channel();
    let released = std::sync::Mutex::new(Some(released));
    let server = AcceptLoop::start(move |number, mut stream| {
        let released = if number == 0 { released.lock().unwrap().take() } else { None };
        async move {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            // The first request gets a response that takes long, the second one none.
            if let Some(released) = released {
                stream.write_all(part).await.unwrap();
                released.await.unwrap();
                stream.write_all(rest).await.unwrap();
            }
            let _ = stream.read(&mut request).await;
        }
    })
    .await;
    let start = |url: String, settings: &str| {
        TestGateway::start(&policy(&[url], settings, LIMIT), ResourceLimits::default())
    };
    let second = start(server.url(), "");
    let settings = "retry: off, timeouts: { total: 2s }";
    let first = start(format!("http://{}", second.address), settings);
    let mut client = first.client().await;
    client.send(GET.as_bytes()).await;
    client.first_bytes().await;
    // The time of a request that gets no response passes meanwhile.
    assert_eq!(first.send_raw(GET).await.status, 504);
    release.send(()).unwrap();
    assert_eq!(client.response().await.expect("the whole response").text(), "abcdefghi");
}

#[tokio::test]
async fn server_that_passes_on_504_has_failed_unless_the_deadline_is_shorter_than_the_timeout() {
    let server = RecordingServer::scripted(|_| Reply::Keep(status("504 Gateway Timeout", ""))).await;
    let settings = "breaker: { failures: 5 }, timeouts: { request: 5s }";
    let text = policy(&[server.url()], settings, LIMIT);
    for (deadline, expected) in [("", 4), ("4000", 0), ("6000", 4)] {
        let gateway = TestGateway::start_at(super::manual_clock(), &text);
        let header = if deadline.is_empty() {
            String::new()
        } else {
            format!("X-Request-Deadline-Ms: {deadline}\r\n")
        };
        for _ in 0..4 {
            assert_eq!(gateway.send_raw(&get(&header)).await.status, 504);
        }
        let breaker = || gateway.upstream().servers[0].breaker.expect("a breaker");
        assert_eq!(breaker().consecutive_failures, expected, "{deadline}");
    }
    let text = policy(&[server.url()], "breaker: { failures: 5 }, timeouts: { total: 5s }", LIMIT);
    let gateway = TestGateway::start_at(super::manual_clock(), &text);
    for _ in 0..4 {
        assert_eq!(gateway.send_raw(GET).await.status, 504);
    }
    let breaker = gateway.upstream().servers[0].breaker.expect("a breaker");
    assert_eq!(breaker.consecutive_failures, 4, "the deadline of the gateway is not that of a client");
}
