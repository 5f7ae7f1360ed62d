//! HTTP/2 connections of a proxy in front, which its clients share: what one of them sends does not close them for the others.

use tidegate_testkit::client::{
    END_HEADERS, END_STREAM, FrameClient, HEADERS, RST_STREAM, frame, get_head, literal,
};
use tidegate_testkit::server::RecordingServer;

use crate::fixture::TestGateway;

const CANCEL: [u8; 4] = [0, 0, 0, 8];
/// More than the gateway accepts from a peer that is no trusted proxy.
const STREAMS: u32 = 300;

/// Sends `frames` of many streams at once, and then a request. Returns whether that gets 200.
async fn serves_after(trusted: &str, frames: impl Fn(u32) -> Vec<u8> + Send + 'static) -> bool {
    let upstream = RecordingServer::start().await;
    let rest = format!(
        "clients: {{ ip: {{ trusted_proxies: [{trusted}] }} }}\n\
         rate_limits: {{ default: {{ requests: 100000, window: 1h }} }}"
    );
    let gateway = TestGateway::before(&[upstream.url()], &rest);
    let address = gateway.address;
    let client = tokio::task::spawn_blocking(move || {
        let mut client = FrameClient::open(address);
        let last = 2 * STREAMS + 1;
        let mut bytes: Vec<u8> = (0..STREAMS).flat_map(|n| frames(2 * n + 1)).collect();
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, last, &get_head()));
        std::io::Write::write_all(&mut client.stream, &bytes)?;
        client.response_head(last)
    });
    // The first byte of the head is the status.
    client.await.expect("no panic").is_ok_and(|head| head.first() == Some(&0x88))
}

fn malformed(stream: u32) -> Vec<u8> {
    let head = [get_head(), literal("connection", "close", false)].concat();
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &head)
}

fn reset(stream: u32) -> Vec<u8> {
    let head = frame(HEADERS, END_HEADERS | END_STREAM, stream, &get_head());
    [head, frame(RST_STREAM, 0, stream, &CANCEL)].concat()
}

#[tokio::test]
async fn http2_malformed_requests_close_the_connection_of_a_client_but_not_of_a_trusted_proxy() {
    assert!(!serves_after("192.0.2.1", malformed).await);
    assert!(serves_after("127.0.0.1", malformed).await);
}

#[tokio::test]
async fn http2_requests_that_are_reset_at_once_close_the_connection_of_a_client_but_not_of_a_trusted_proxy() {
    assert!(!serves_after("192.0.2.1", reset).await);
    assert!(serves_after("127.0.0.1", reset).await);
}
