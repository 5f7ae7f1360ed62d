//! Long calls, which clients of the caller cause with long paths and headers.

use bytes::BufMut;
use http::HeaderValue;

use super::super::frame::MAX_MESSAGE;
use super::*;

const ENVOY: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: path, rate_limit: { unit: minute, requests_per_unit: 1 } }
";

fn start() -> LoopbackService {
    LoopbackService::start("rate_limits: {}", ENVOY)
}

/// A call with four descriptors, each of which has a header of `length` bytes.
fn call_with_headers(length: usize) -> RateLimitRequest {
    let value = vec![b'a'; length];
    let descriptors = ["user", "path", "user", "path"].map(|key| descriptor(&[(key, &value)]));
    request("d", descriptors.to_vec())
}

#[tokio::test]
async fn headers_of_60_kib_in_four_descriptors_are_decided() {
    let service = start();
    let caller = service.connect().await;
    let response = caller.ask(&call_with_headers(60 << 10)).await.response();
    assert_eq!((response.overall_code, response.statuses.len()), (OVER_LIMIT, 4), "the second hit of each");
    let small = request("d", vec![descriptor(&[("user", "bob")])]);
    assert_eq!(caller.ask(&small).await.response().overall_code, OK);
}

#[tokio::test]
async fn message_over_the_largest_size_is_over_the_limit() {
    let service = start();
    let caller = service.connect().await;
    let length = u32::try_from(MAX_MESSAGE + 1).unwrap();
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(length);
    body.put_bytes(b'a', 1_000);
    for _ in 0..3 {
        let response = caller.call(RLS, body.clone().freeze()).await.response();
        assert_eq!((response.overall_code, response.statuses.len()), (OVER_LIMIT, 0));
        let body = String::from_utf8_lossy(&response.raw_body);
        assert!(body.contains("head_too_large"), "{body}");
    }
    let small = request("d", vec![descriptor(&[("user", "bob")])]);
    assert_eq!(caller.ask(&small).await.response().overall_code, OK);
    // Whole messages of this kind too: the rest of them does not use up the window of the connection.
    for _ in 0..10 {
        let response = caller.ask(&call_with_headers(80 << 10)).await.response();
        assert_eq!(response.overall_code, OVER_LIMIT);
    }
}

#[tokio::test]
async fn request_with_more_headers_than_are_read_is_over_the_limit() {
    let service = start();
    let caller = service.connect().await;
    let entries = vec![("x-a", "b"); 1_025];
    let response = caller.ask(&request("tidegate", vec![descriptor(&entries)])).await.response();
    assert_eq!(response.overall_code, OVER_LIMIT);
    // The entries of other domains are chosen by the operator.
    assert_eq!(caller.ask(&request("d", vec![descriptor(&entries)])).await.status, 3);
}

#[tokio::test]
async fn messages_in_part_never_fill_the_window_of_the_connection() {
    let service = start();
    let caller = service.connect().await;
    let message = frame::encode(&call_with_headers(30 << 10));
    let (mut begun, mut over) = (Vec::new(), 0);
    for _ in 0..20 {
        let (response, mut stream) = caller.begin(RLS, &HeaderMap::new()).await;
        stream.send_data(message.slice(..100 << 10), false).unwrap();
        begun.push((response, stream));
    }
    // 20 times 100 KiB are twice the window, yet a call is still decided.
    let small = request("d", vec![descriptor(&[("user", "bob")])]);
    assert_eq!(caller.ask(&small).await.response().overall_code, OK);
    for (response, mut stream) in begun {
        let _ = stream.send_data(message.slice(100 << 10..), true);
        let response = within("a reply", reply(response)).await.response();
        over += usize::from(!response.raw_body.is_empty());
    }
    assert!((10..20).contains(&over), "{over} calls were rejected for their size");
}

/// Health checks need no token, so their messages must not take up memory.
#[tokio::test]
async fn health_check_with_a_long_message_is_refused_before_the_message_arrives() {
    let service = start();
    let caller = service.connect().await;
    let mut prefix = BytesMut::new();
    prefix.put_u8(0);
    prefix.put_u32(2 << 10);
    let (response, mut stream) = caller.begin("/grpc.health.v1.Health/Check", &HeaderMap::new()).await;
    stream.send_data(prefix.freeze(), false).unwrap();
    assert_eq!(within("a reply", reply(response)).await.status, 8, "RESOURCE_EXHAUSTED");
}

#[tokio::test]
async fn head_with_a_long_trace_state_is_accepted() {
    let service = start();
    let caller = service.connect().await;
    let mut headers = HeaderMap::new();
    headers.insert("tracestate", HeaderValue::from_str(&"a".repeat(60 << 10)).unwrap());
    let call = frame::encode(&request("d", vec![descriptor(&[("user", "bob")])]));
    assert_eq!(caller.call_with(RLS, &headers, call.clone()).await.response().overall_code, OK);
    // Also if its message arrives later.
    let (response, mut stream) = caller.begin(RLS, &headers).await;
    assert_eq!(caller.call(RLS, call.clone()).await.response().overall_code, OVER_LIMIT);
    stream.send_data(call, true).unwrap();
    assert_eq!(within("a reply", reply(response)).await.response().overall_code, OVER_LIMIT);
}
