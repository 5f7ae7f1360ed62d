//! Limits on connections and on the length of a body.

use tidegate_testkit::client::RawClient;
use tidegate_testkit::server::RecordingServer;
use tidegate_testkit::wait::eventually;

use crate::fixture::{ResourceLimits, TestGateway};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn connection_limit_per_address_reached_closes_the_next_connection() {
    let upstream = RecordingServer::start().await;
    let bounds = ResourceLimits { connections_per_address: 3, ..ResourceLimits::default() };
    assert_three_connections_fit(&TestGateway::with_limit(&[&upstream], 100, bounds)).await;
}

#[tokio::test]
async fn connection_limit_in_total_reached_closes_the_next_connection() {
    let upstream = RecordingServer::start().await;
    let bounds = ResourceLimits { connections: 3, ..ResourceLimits::default() };
    assert_three_connections_fit(&TestGateway::with_limit(&[&upstream], 100, bounds)).await;
}

async fn assert_three_connections_fit(gateway: &TestGateway) {
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut client = gateway.client().await;
        assert_eq!(get_status(&mut client).await, Some(200));
        open.push(client);
    }
    let mut fourth = gateway.client().await;
    assert_eq!(get_status(&mut fourth).await, None, "the fourth connection is closed");
    assert_eq!(get_status(&mut open[0]).await, Some(200), "the others stay open");
    open.pop();
    eventually("one connection is closed", || gateway.connections() == 2).await;
    assert_eq!(get_status(&mut gateway.client().await).await, Some(200), "another connection is accepted");
}

async fn get_status(client: &mut RawClient) -> Option<u16> {
    client.send(GET).await;
    client.response().await.map(|response| response.status)
}

#[tokio::test]
async fn body_with_too_large_content_length_gets_413_and_is_not_charged() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(
        &[&upstream],
        100,
        ResourceLimits { body_bytes: 10, ..ResourceLimits::default() },
    );
    let response =
        gateway.send_raw("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n01234567890").await;
    assert_eq!((response.status, response.header("connection")), (413, Some("close")));
    assert!(response.text().contains("body_too_large"));
    assert_eq!(upstream.bytes(), 0);
    let response =
        gateway.send_raw("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789").await;
    assert_eq!((response.status, response.remaining()), (200, 99));
}

#[tokio::test]
async fn chunked_body_that_becomes_too_large_gets_413_and_is_not_forwarded() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(
        &[&upstream],
        100,
        ResourceLimits { body_bytes: 10, ..ResourceLimits::default() },
    );
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let response = gateway.send_raw(&format!("{head}8\r\n01234567\r\n8\r\n01234567\r\n0\r\n\r\n")).await;
    assert_eq!(response.status, 413, "{}", response.text());
    assert!(upstream.requests().is_empty(), "no complete request arrived");
    assert_eq!(gateway.send_raw(&format!("{head}a\r\n0123456789\r\n0\r\n\r\n")).await.status, 200);
    assert_eq!(upstream.last().body, b"0123456789");
}

#[tokio::test]
async fn expect_continue_gets_100_only_if_the_limit_admits_the_request() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 1, ResourceLimits::default());
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    let mut client = gateway.client().await;
    client.send(head.as_bytes()).await;
    assert!(client.first_bytes().await.starts_with(b"HTTP/1.1 100 "));
    client.send(b"abc").await;
    assert_eq!(client.response().await.map(|response| response.status), Some(200));
    let seen = upstream.last();
    assert_eq!((seen.body.as_slice(), seen.header("expect")), (&b"abc"[..], None));
    let mut rejected = gateway.client().await;
    rejected.send(head.as_bytes()).await;
    assert!(rejected.first_bytes().await.starts_with(b"HTTP/1.1 429 "));
}
