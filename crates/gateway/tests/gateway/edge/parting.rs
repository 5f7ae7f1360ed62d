//! Refused while still sending: the answer is read all the same.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use tidegate_testkit::client::{RawClient, http2_streams};
use tidegate_testkit::message::Response;
use tidegate_testkit::server::RecordingServer;
use tidegate_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixture::{ResourceLimits, TestGateway, ticking};

/// More than the system keeps for anybody.
const SIZE: usize = 10 << 20;

/// Sends all of it before it reads anything.
async fn sends_then_reads(mut client: RawClient, head: &str, body: &[u8]) -> Option<Response> {
    assert!(client.send(head.as_bytes()).await, "the head is taken");
    assert!(client.send(body).await, "the body is taken, and thrown away");
    client.response().await
}

fn posts(more: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{more}\r\n")
}

#[tokio::test]
async fn a_body_too_large_is_answered_though_nobody_reads_it() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(
        &[&upstream],
        100,
        ResourceLimits { body_bytes: 1 << 20, ..ResourceLimits::default() },
    );
    let head = posts(&format!("Content-Length: {SIZE}\r\n"));
    let answer = sends_then_reads(served.client().await, &head, &vec![b'a'; SIZE]).await.expect("an answer");
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    eventually("the connection is ended", || served.connections() == 0).await;
}

#[tokio::test]
async fn chunks_that_become_too_many_are_answered_though_nobody_reads_the_rest() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(
        &[&upstream],
        100,
        ResourceLimits { body_bytes: 1 << 20, ..ResourceLimits::default() },
    );
    let mut body = format!("{SIZE:x}\r\n").into_bytes();
    body.resize(body.len() + SIZE, b'a');
    body.extend_from_slice(b"\r\n0\r\n\r\n");
    let head = posts("Transfer-Encoding: chunked\r\n");
    let answer = sends_then_reads(served.client().await, &head, &body).await.expect("an answer");
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert!(upstream.requests().is_empty(), "no whole request came");
}

#[tokio::test]
async fn a_limit_is_told_to_a_client_that_is_still_sending() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 1, ResourceLimits::default());
    assert_eq!(served.get_raw("/").await.status, 200);
    let head = posts(&format!("Content-Length: {SIZE}\r\n"));
    let answer = sends_then_reads(served.client().await, &head, &vec![b'a'; SIZE]).await.expect("an answer");
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn what_is_no_request_is_told_so_however_much_follows() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    let head = "GET / HTTP/1.1\r\nHost: a\r\nBad Header: 1\r\n\r\n";
    let answer = sends_then_reads(served.client().await, head, &vec![b'a'; SIZE]).await.expect("an answer");
    assert_eq!(answer.status, 400);
}

#[tokio::test]
async fn what_is_thrown_away_is_never_taken_for_a_request() {
    let upstream = RecordingServer::start().await;
    let look = Duration::from_millis(20);
    let served =
        TestGateway::with_limit(&[&upstream], 100, ResourceLimits { body_bytes: 1 << 20, ..ticking(look) });
    for head in [posts(&format!("Content-Length: {SIZE}\r\n")), "BAD\r\n\r\n".to_owned()] {
        let mut client = served.client().await;
        client.send(head.as_bytes()).await;
        let status = client.response().await.expect("an answer").status;
        assert!(matches!(status, 400 | 413), "{status}");
        // Long enough that a connection at rest would have been put aside.
        for _ in 0..5 {
            // Nothing may happen, so there is no event; the gateway has its own threads and real time.
            tokio::time::sleep(look * 3).await;
            client.send(b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n").await;
        }
        assert_eq!(client.rest().await, b"");
    }
    assert_eq!(served.get_raw("/").await.remaining(), 99, "nothing else was charged");
    assert_eq!(upstream.requests().len(), 1, "nothing else was forwarded");
}

#[tokio::test]
async fn who_has_sent_everything_is_not_waited_for() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    let mut client = served.client().await;
    client.send(posts("Content-Length: 3\r\nConnection: close\r\n").as_bytes()).await;
    client.send(b"abc").await;
    assert_eq!(client.response().await.map(|response| response.status), Some(200));
    // The client has not ended its side, and need not.
    eventually("the connection is ended", || served.connections() == 0).await;
    assert_eq!(client.rest().await, b"");
}

#[tokio::test]
async fn over_http2_a_limit_is_told_and_the_connection_goes_on() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 1, ResourceLimits::default());
    assert_eq!(served.get_raw("/").await.status, 200);
    let (client, _connection) = http2_streams(served.address).await;
    for _ in 0..3 {
        let mut ready = within("room", client.clone().ready()).await.expect("the connection goes on");
        let request = Request::post("http://a.example/").body(()).expect("a request");
        let (response, mut body) = ready.send_request(request, false).expect("a stream");
        // Whether it is cut off by a reset or by the answer, the answer is there.
        let _ = body.send_data(Bytes::from(vec![b'a'; SIZE]), true);
        let response = within("an answer", response).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn the_rest_of_a_body_that_was_answered_early_is_never_taken_for_a_request() {
    // It answers as soon as it has the head, and goes on reading.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut seen = Vec::new();
        while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
            stream.read_buf(&mut seen).await.expect("a head");
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly").await.expect("an answer");
        while let Ok(1..) = stream.read_buf(&mut seen).await {}
    });
    let look = Duration::from_millis(20);
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"http://{address}\"] }} }}\n\
         routes: [{{ path: /**, upstream: app }}]\n\
         rate_limits: {{ default: {{ requests: 100, window: 1h }} }}\n"
    );
    let served = TestGateway::start(&policy, ticking(look));
    let mut client = served.client().await;
    client.send(posts("Content-Length: 1000\r\n").as_bytes()).await;
    let answer = client.response().await.expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, "early"));
    // Long enough that a connection at rest would have been put aside.
    for _ in 0..5 {
        // Nothing may happen, so there is no event; the gateway has its own threads and real time.
        tokio::time::sleep(look * 3).await;
        client.send(b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n").await;
    }
    client.shut_down().await;
    assert_eq!(client.rest().await, b"", "none of it was answered");
    drop(served);
    answering.abort();
}
