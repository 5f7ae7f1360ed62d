//! Lingering close: a client that is rejected while it still sends can read the response.

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

/// More than the socket buffers hold.
const SIZE: usize = 10 << 20;

/// Sends the whole request before it reads the response.
async fn send_then_read(mut client: RawClient, head: &str, body: &[u8]) -> Option<Response> {
    assert!(client.send(head.as_bytes()).await, "the head is sent");
    assert!(client.send(body).await, "the body is read and discarded");
    client.response().await
}

fn post_head(more: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{more}\r\n")
}

#[tokio::test]
async fn body_too_large_gets_413_though_it_is_not_read() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(
        &[&upstream],
        100,
        ResourceLimits { body_bytes: 1 << 20, ..ResourceLimits::default() },
    );
    let head = post_head(&format!("Content-Length: {SIZE}\r\n"));
    let response =
        send_then_read(gateway.client().await, &head, &vec![b'a'; SIZE]).await.expect("a response");
    assert_eq!((response.status, response.header("connection")), (413, Some("close")));
    eventually("the connection is closed", || gateway.connections() == 0).await;
}

#[tokio::test]
async fn chunked_body_too_large_gets_413_though_the_rest_is_not_read() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(
        &[&upstream],
        100,
        ResourceLimits { body_bytes: 1 << 20, ..ResourceLimits::default() },
    );
    let mut body = format!("{SIZE:x}\r\n").into_bytes();
    body.resize(body.len() + SIZE, b'a');
    body.extend_from_slice(b"\r\n0\r\n\r\n");
    let head = post_head("Transfer-Encoding: chunked\r\n");
    let response = send_then_read(gateway.client().await, &head, &body).await.expect("a response");
    assert_eq!(response.status, 413, "{}", response.text());
    assert!(upstream.requests().is_empty(), "no complete request arrived");
}

#[tokio::test]
async fn client_over_the_limit_gets_429_while_it_still_sends() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 1, ResourceLimits::default());
    assert_eq!(gateway.get_raw("/").await.status, 200);
    let head = post_head(&format!("Content-Length: {SIZE}\r\n"));
    let response =
        send_then_read(gateway.client().await, &head, &vec![b'a'; SIZE]).await.expect("a response");
    assert_eq!(response.status, 429, "{}", response.text());
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn invalid_request_gets_400_however_many_bytes_follow() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    let head = "GET / HTTP/1.1\r\nHost: a\r\nBad Header: 1\r\n\r\n";
    let response = send_then_read(gateway.client().await, head, &vec![b'a'; SIZE]).await.expect("a response");
    assert_eq!(response.status, 400);
}

#[tokio::test]
async fn discarded_bytes_are_never_parsed_as_a_request() {
    let upstream = RecordingServer::start().await;
    let tick = Duration::from_millis(20);
    let gateway =
        TestGateway::with_limit(&[&upstream], 100, ResourceLimits { body_bytes: 1 << 20, ..ticking(tick) });
    for head in [post_head(&format!("Content-Length: {SIZE}\r\n")), "BAD\r\n\r\n".to_owned()] {
        let mut client = gateway.client().await;
        client.send(head.as_bytes()).await;
        let status = client.response().await.expect("a response").status;
        assert!(matches!(status, 400 | 413), "{status}");
        // Long enough that an idle connection would have been parked.
        for _ in 0..5 {
            // Nothing may happen, so there is no event; the gateway has its own threads and real time.
            tokio::time::sleep(tick * 3).await;
            client.send(b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n").await;
        }
        assert_eq!(client.rest().await, b"");
    }
    assert_eq!(gateway.get_raw("/").await.remaining(), 99, "nothing else was charged");
    assert_eq!(upstream.requests().len(), 1, "nothing else was forwarded");
}

#[tokio::test]
async fn connection_with_a_complete_request_is_closed_without_delay() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ResourceLimits::default());
    let mut client = gateway.client().await;
    client.send(post_head("Content-Length: 3\r\nConnection: close\r\n").as_bytes()).await;
    client.send(b"abc").await;
    assert_eq!(client.response().await.map(|response| response.status), Some(200));
    // The client has not closed its side.
    eventually("the connection is closed", || gateway.connections() == 0).await;
    assert_eq!(client.rest().await, b"");
}

#[tokio::test]
async fn response_before_the_body_says_that_the_connection_closes() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 1, ResourceLimits::default());
    assert_eq!(gateway.get_raw("/").await.status, 200);
    for framing in [
        "Content-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 3\r\nExpect: 100-continue\r\n",
    ] {
        let mut client = gateway.client().await;
        client.send(post_head(framing).as_bytes()).await;
        let response = client.response().await.expect("a response");
        assert_eq!((response.status, response.header("connection")), (429, Some("close")), "{framing}");
        assert_eq!(client.rest().await, b"", "{framing}");
    }
    let mut client = gateway.client().await;
    for _ in 0..3 {
        client.send((post_head("Content-Length: 3\r\n") + "abc").as_bytes()).await;
        let response = client.response().await.expect("a response");
        assert_eq!((response.status, response.header("connection")), (429, None), "the body has arrived");
    }
}

#[tokio::test]
async fn http2_client_over_the_limit_gets_429_and_the_connection_stays_open() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 1, ResourceLimits::default());
    assert_eq!(gateway.get_raw("/").await.status, 200);
    let (client, _connection) = http2_streams(gateway.address).await;
    for _ in 0..3 {
        let mut ready = within("capacity", client.clone().ready()).await.expect("the connection is open");
        let request = Request::post("http://a.example/").body(()).expect("a request");
        let (response, mut body) = ready.send_request(request, false).expect("a stream");
        // A reset may cut the upload off, but the response arrives.
        let _ = body.send_data(Bytes::from(vec![b'a'; SIZE]), true);
        let response = within("a response", response).await.expect("a response");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn rest_of_a_body_after_an_early_response_is_never_parsed_as_a_request() {
    // The upstream responds as soon as it has the head, and keeps reading.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let responding = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut seen = Vec::new();
        while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
            stream.read_buf(&mut seen).await.expect("a head");
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly").await.expect("a response");
        while let Ok(1..) = stream.read_buf(&mut seen).await {}
    });
    let tick = Duration::from_millis(20);
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"http://{address}\"] }} }}\n\
         routes: [{{ path: /**, upstream: app }}]\n\
         rate_limits: {{ default: {{ requests: 100, window: 1h }} }}\n"
    );
    let gateway = TestGateway::start(&policy, ticking(tick));
    let mut client = gateway.client().await;
    client.send(post_head("Content-Length: 1000\r\n").as_bytes()).await;
    let response = client.response().await.expect("a response");
    assert_eq!((response.status, response.text().as_str()), (200, "early"));
    // Long enough that an idle connection would have been parked.
    for _ in 0..5 {
        // Nothing may happen, so there is no event; the gateway has its own threads and real time.
        tokio::time::sleep(tick * 3).await;
        client.send(b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n").await;
    }
    client.shut_down().await;
    assert_eq!(client.rest().await, b"", "the rest of the body gets no response");
    drop(gateway);
    responding.abort();
}
