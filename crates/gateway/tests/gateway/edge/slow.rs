//! Clients that only hold a place are ended, and the others never notice.

use std::time::Duration;

use tidegate_testkit::client::RawClient;
use tidegate_testkit::server::{RecordingServer, Reply};
use tidegate_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{MinRate, ResourceLimits, TestGateway, ticking};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// The real time between two bytes of a slow client, less than a look. The gateway measures rates in real time, in threads
/// of its own.
const DRIP: Duration = Duration::from_millis(10);

fn bounds() -> ResourceLimits {
    ResourceLimits {
        request_min_rate: MinRate { period: Duration::from_millis(200), bytes: 1_000 },
        ..ticking(Duration::from_millis(30))
    }
}

/// Ends when `slow` does; meanwhile a healthy client must be served over one connection.
async fn while_others_are_served<T>(served: &TestGateway, slow: impl Future<Output = T>) -> T {
    let mut healthy = served.client().await;
    let mut slow = std::pin::pin!(slow);
    let serving = async {
        loop {
            healthy.send(GET).await;
            let response = healthy.response().await.expect("the healthy client is served");
            assert_eq!(response.status, 200);
            tokio::select! {
                ended = slow.as_mut() => return ended,
                () = tokio::time::sleep(DRIP) => {}
            }
        }
    };
    within("the slow client is ended", serving).await
}

/// Sends `bytes` one by one until the gateway ends the connection or they run out.
async fn drip(client: &mut RawClient, bytes: &[u8]) {
    for byte in bytes {
        if !client.send(&[*byte]).await {
            return;
        }
        tokio::time::sleep(DRIP).await;
    }
}

#[tokio::test]
async fn a_head_that_stops_is_ended() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    for head in [&b"G"[..], b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\nHost: a\r\n"] {
        let mut client = served.client().await;
        client.send(head).await;
        assert_eq!(while_others_are_served(&served, client.rest()).await, b"");
    }
}

#[tokio::test]
async fn a_head_that_drips_is_ended() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    let mut client = served.client().await;
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(400));
    while_others_are_served(&served, async {
        drip(&mut client, head.as_bytes()).await;
        assert_eq!(client.rest().await, b"");
    })
    .await;
}

#[tokio::test]
async fn a_body_that_stops_or_drips_is_ended_with_a_word() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    let head = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n";
    for body in [vec![], vec![b'a'; 100]] {
        let mut client = served.client().await;
        client.send(head).await;
        let answer = while_others_are_served(&served, async {
            drip(&mut client, &body).await;
            client.response().await
        })
        .await
        .expect("an answer");
        assert_eq!(answer.status, 408, "{}", answer.text());
        assert!(answer.text().contains("body_too_slow"));
    }
    assert!(upstream.requests().iter().all(|request| request.target == "/"));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_ended() {
    let upstream = large().await;
    let served = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    let mut client = served.client().await;
    client.send(GET).await;
    eventually("the connection is there", || served.connections() == 1).await;
    eventually("the connection is ended", || served.connections() == 0).await;
    assert!(client.rest().await.len() < LARGE);
}

/// Sends 64 MiB to everybody.
async fn large() -> RecordingServer {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").into_bytes();
    let answer = [head, vec![b'a'; LARGE]].concat();
    RecordingServer::scripted(move |_| Reply::Keep(answer.clone())).await
}

const LARGE: usize = 64 << 20;

/// Reads `piece` bytes now and then, and says how many in all.
async fn sips(served: &TestGateway, piece: usize, most: usize) -> usize {
    let mut stream = TcpStream::connect(served.address).await.expect("a connection");
    stream.write_all(GET).await.expect("a request");
    let (mut taken, mut sip) = (0, vec![0; piece]);
    while taken < most {
        tokio::time::sleep(DRIP).await;
        match within("reading", stream.read(&mut sip)).await {
            Ok(read @ 1..) => taken += read,
            _ => break,
        }
    }
    taken
}

#[tokio::test]
async fn a_client_that_reads_slowly_but_steadily_is_served() {
    let upstream = large().await;
    let served = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    // Some looks' worth of what the system keeps unsent; megabytes would come too late.
    let taken = sips(&served, 64 << 10, 24 << 20).await;
    assert!(taken >= 24 << 20, "it was ended after {taken} bytes");
}

#[tokio::test]
async fn a_client_that_reads_but_too_little_is_ended() {
    let upstream = large().await;
    let served =
        TestGateway::with_limit(&[&upstream], 10_000, ResourceLimits { reader_bytes: 64 << 20, ..bounds() });
    assert!(sips(&served, 4 << 10, LARGE).await < LARGE);
    eventually("the connection is ended", || served.connections() == 0).await;
}

#[tokio::test]
async fn a_quiet_stream_has_no_slow_reader() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n".to_vec();
    let upstream = RecordingServer::scripted(move |_| Reply::Hang(head.clone())).await;
    let served =
        TestGateway::with_limit(&[&upstream], 10_000, ResourceLimits { reader_bytes: 64 << 20, ..bounds() });
    let mut client = served.client().await;
    client.send(GET).await;
    client.first_bytes().await;
    let windows = bounds().reader_window * 4;
    assert!(tokio::time::timeout(windows, client.rest()).await.is_err(), "it is kept while nothing comes");
}

#[tokio::test]
async fn an_idle_connection_is_ended() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 10_000, bounds());
    let mut silent = served.client().await;
    let mut kept = served.client().await;
    kept.send(GET).await;
    assert_eq!(kept.response().await.map(|response| response.status), Some(200));
    while_others_are_served(&served, async {
        assert_eq!(silent.rest().await, b"");
        assert_eq!(kept.rest().await, b"");
    })
    .await;
}

#[tokio::test]
async fn who_waits_for_a_slow_upstream_is_not_idle() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na".to_vec();
    let upstream = RecordingServer::scripted(move |_| Reply::Hang(head.clone())).await;
    // Twice as long as a connection may be idle.
    let response_min_rate = MinRate { period: Duration::from_millis(900), bytes: 2 };
    let served =
        TestGateway::with_limit(&[&upstream], 10_000, ResourceLimits { response_min_rate, ..bounds() });
    let mut client = served.client().await;
    client.send(GET).await;
    client.first_bytes().await;
    // Part of the next request: it waits its turn, and is no slow head.
    client.send(b"GET /").await;
    let idle_for = bounds().idle_timeout;
    assert!(
        tokio::time::timeout(idle_for * 3 / 2, client.rest()).await.is_err(),
        "it is kept while answered"
    );
    within("the upstream's silence ends it", client.rest()).await;
}

#[tokio::test]
async fn a_long_upload_may_take_longer_than_an_answer() {
    let upstream = RecordingServer::start().await;
    let bounds = ResourceLimits { response_timeout: Duration::from_millis(100), ..ResourceLimits::default() };
    let served = TestGateway::with_limit(&[&upstream], 10_000, bounds);
    let mut client = served.client().await;
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\n").await;
    drip(&mut client, &[b'a'; 40]).await;
    let answer = client.response().await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
}
