//! Room: for so many connections, and for so long a body.

use tidegate_testkit::client::RawClient;
use tidegate_testkit::server::RecordingServer;
use tidegate_testkit::wait::eventually;

use crate::fixture::{ResourceLimits, TestGateway};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn there_is_room_for_so_many_connections_of_one_address() {
    let upstream = RecordingServer::start().await;
    let bounds = ResourceLimits { connections_per_address: 3, ..ResourceLimits::default() };
    only_three_fit(&TestGateway::with_limit(&[&upstream], 100, bounds)).await;
}

#[tokio::test]
async fn there_is_room_for_so_many_connections_in_all() {
    let upstream = RecordingServer::start().await;
    let bounds = ResourceLimits { connections: 3, ..ResourceLimits::default() };
    only_three_fit(&TestGateway::with_limit(&[&upstream], 100, bounds)).await;
}

async fn only_three_fit(served: &TestGateway) {
    let mut inside = Vec::new();
    for _ in 0..3 {
        let mut client = served.client().await;
        assert_eq!(answer(&mut client).await, Some(200));
        inside.push(client);
    }
    let mut late = served.client().await;
    assert_eq!(answer(&mut late).await, None, "the fourth is let go");
    assert_eq!(answer(&mut inside[0]).await, Some(200), "the others stay");
    inside.pop();
    eventually("one leaves", || served.connections() == 2).await;
    assert_eq!(answer(&mut served.client().await).await, Some(200), "its place is free");
}

async fn answer(client: &mut RawClient) -> Option<u16> {
    client.send(GET).await;
    client.response().await.map(|response| response.status)
}

#[tokio::test]
async fn a_body_declared_too_large_is_refused_before_anything_is_charged() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(
        &[&upstream],
        100,
        ResourceLimits { body_bytes: 10, ..ResourceLimits::default() },
    );
    let answer = served.send_raw("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n01234567890").await;
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    assert!(answer.text().contains("body_too_large"));
    assert_eq!(upstream.bytes(), 0);
    let answer = served.send_raw("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789").await;
    assert_eq!((answer.status, answer.remaining()), (200, 99));
}

#[tokio::test]
async fn a_body_in_chunks_is_cut_off_where_it_becomes_too_large() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(
        &[&upstream],
        100,
        ResourceLimits { body_bytes: 10, ..ResourceLimits::default() },
    );
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = served.send_raw(&format!("{head}8\r\n01234567\r\n8\r\n01234567\r\n0\r\n\r\n")).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert!(upstream.requests().is_empty(), "no whole request came");
    assert_eq!(served.send_raw(&format!("{head}a\r\n0123456789\r\n0\r\n\r\n")).await.status, 200);
    assert_eq!(upstream.last().body, b"0123456789");
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on_only_if_it_may() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 1, ResourceLimits::default());
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    let mut client = served.client().await;
    client.send(head.as_bytes()).await;
    assert!(client.first_bytes().await.starts_with(b"HTTP/1.1 100 "));
    client.send(b"abc").await;
    assert_eq!(client.response().await.map(|response| response.status), Some(200));
    let seen = upstream.last();
    assert_eq!((seen.body.as_slice(), seen.header("expect")), (&b"abc"[..], None));
    let mut refused = served.client().await;
    refused.send(head.as_bytes()).await;
    assert!(refused.first_bytes().await.starts_with(b"HTTP/1.1 429 "));
}
