//! Slow and idle clients are disconnected without effect on other clients.

use std::time::Duration;

use tidegate_testkit::client::RawClient;
use tidegate_testkit::server::{RecordingServer, Reply};
use tidegate_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{MinRate, ResourceLimits, TestGateway, ticking};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// The real time between two bytes of a slow client, less than a tick. The gateway measures rates in real time, in threads
/// of its own.
const INTERVAL: Duration = Duration::from_millis(10);

fn bounds() -> ResourceLimits {
    ResourceLimits {
        request_min_rate: MinRate { period: Duration::from_millis(200), bytes: 1_000 },
        ..ticking(Duration::from_millis(30))
    }
}

/// Runs until `slow` ends. Meanwhile a healthy client must get responses over one connection.
async fn while_others_get_responses<T>(gateway: &TestGateway, slow: impl Future<Output = T>) -> T {
    let mut healthy = gateway.client().await;
    let mut slow = std::pin::pin!(slow);
    let requests = async {
        loop {
            healthy.send(GET).await;
            let response = healthy.response().await.expect("a response for the healthy client");
            assert_eq!(response.status, 200);
            tokio::select! {
                ended = slow.as_mut() => return ended,
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    };
    within("the slow client is disconnected", requests).await
}

/// Sends `bytes` one by one until the gateway closes the connection or all are sent.
async fn send_slowly(client: &mut RawClient, bytes: &[u8]) {
    for byte in bytes {
        if !client.send(&[*byte]).await {
            return;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

#[tokio::test]
async fn head_that_stops_times_out() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    for head in [&b"G"[..], b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\nHost: a\r\n"] {
        let mut client = gateway.client().await;
        client.send(head).await;
        assert_eq!(while_others_get_responses(&gateway, client.rest()).await, b"");
    }
}

#[tokio::test]
async fn head_sent_too_slowly_times_out() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    let mut client = gateway.client().await;
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(400));
    while_others_get_responses(&gateway, async {
        send_slowly(&mut client, head.as_bytes()).await;
        assert_eq!(client.rest().await, b"");
    })
    .await;
}

#[tokio::test]
async fn body_that_stops_or_is_too_slow_gets_408() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    let head = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n";
    for body in [vec![], vec![b'a'; 100]] {
        let mut client = gateway.client().await;
        client.send(head).await;
        let response = while_others_get_responses(&gateway, async {
            send_slowly(&mut client, &body).await;
            client.response().await
        })
        .await
        .expect("a response");
        assert_eq!(response.status, 408, "{}", response.text());
        assert!(response.text().contains("body_too_slow"));
    }
    assert!(upstream.requests().iter().all(|request| request.target == "/"));
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    let upstream = large().await;
    let gateway = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    let mut client = gateway.client().await;
    client.send(GET).await;
    eventually("the connection is open", || gateway.connections() == 1).await;
    eventually("the connection is closed", || gateway.connections() == 0).await;
    assert!(client.rest().await.len() < LARGE);
}

/// An upstream whose every response has 64 MiB.
async fn large() -> RecordingServer {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").into_bytes();
    let response = [head, vec![b'a'; LARGE]].concat();
    RecordingServer::scripted(move |_| Reply::Keep(response.clone())).await
}

const LARGE: usize = 64 << 20;

/// Reads `piece` bytes at each interval. Returns how many in total.
async fn read_slowly(gateway: &TestGateway, piece: usize, most: usize) -> usize {
    let mut stream = TcpStream::connect(gateway.address).await.expect("a connection");
    stream.write_all(GET).await.expect("a request");
    let (mut total, mut buffer) = (0, vec![0; piece]);
    while total < most {
        tokio::time::sleep(INTERVAL).await;
        match within("reading", stream.read(&mut buffer)).await {
            Ok(read @ 1..) => total += read,
            _ => break,
        }
    }
    total
}

#[tokio::test]
async fn client_that_reads_slowly_but_steadily_is_not_disconnected() {
    let upstream = large().await;
    let gateway = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    // More than the socket buffers hold, so that the gateway waits for the client for several ticks.
    let total = read_slowly(&gateway, 64 << 10, 24 << 20).await;
    assert!(total >= 24 << 20, "the connection was closed after {total} bytes");
}

#[tokio::test]
async fn client_that_reads_below_the_minimum_rate_is_disconnected() {
    let upstream = large().await;
    let gateway =
        TestGateway::with_limit(&[&upstream], 10_000, ResourceLimits { reader_bytes: 64 << 20, ..bounds() });
    assert!(read_slowly(&gateway, 4 << 10, LARGE).await < LARGE);
    eventually("the connection is closed", || gateway.connections() == 0).await;
}

#[tokio::test]
async fn quiet_event_stream_has_no_slow_reader() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n".to_vec();
    let upstream = RecordingServer::scripted(move |_| Reply::Hang(head.clone())).await;
    let gateway =
        TestGateway::with_limit(&[&upstream], 10_000, ResourceLimits { reader_bytes: 64 << 20, ..bounds() });
    let mut client = gateway.client().await;
    client.send(GET).await;
    client.first_bytes().await;
    let windows = bounds().reader_window * 4;
    assert!(
        tokio::time::timeout(windows, client.rest()).await.is_err(),
        "the connection stays open while nothing is sent"
    );
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    let mut silent = gateway.client().await;
    let mut used = gateway.client().await;
    used.send(GET).await;
    assert_eq!(used.response().await.map(|response| response.status), Some(200));
    while_others_get_responses(&gateway, async {
        assert_eq!(silent.rest().await, b"");
        assert_eq!(used.rest().await, b"");
    })
    .await;
}

#[tokio::test]
async fn connection_waiting_for_a_slow_upstream_is_not_idle() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na".to_vec();
    let upstream = RecordingServer::scripted(move |_| Reply::Hang(head.clone())).await;
    // Twice as long as a connection may be idle.
    let response_min_rate = MinRate { period: Duration::from_millis(900), bytes: 2 };
    let gateway =
        TestGateway::with_limit(&[&upstream], 10_000, ResourceLimits { response_min_rate, ..bounds() });
    let mut client = gateway.client().await;
    client.send(GET).await;
    client.first_bytes().await;
    // Part of the next request: it waits for the response before it, and is no slow head.
    client.send(b"GET /").await;
    let idle_for = bounds().idle_timeout;
    assert!(
        tokio::time::timeout(idle_for * 3 / 2, client.rest()).await.is_err(),
        "the connection stays open during the response"
    );
    within("the minimum rate of the upstream closes the connection", client.rest()).await;
}

#[tokio::test]
async fn upload_may_take_longer_than_the_response_timeout() {
    let upstream = RecordingServer::start().await;
    let bounds = ResourceLimits { response_timeout: Duration::from_millis(100), ..ResourceLimits::default() };
    let gateway = TestGateway::with_limit(&[&upstream], 10_000, bounds);
    let mut client = gateway.client().await;
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\n").await;
    send_slowly(&mut client, &[b'a'; 40]).await;
    let response = client.response().await.expect("a response");
    assert_eq!(response.status, 200, "{}", response.text());
}
