//! Malformed, oversized and slow request bodies are errors of the client, whatever protocol the upstream uses.

use std::time::Duration;

use tidegate_testkit::server::{AcceptLoop, silent_http1, silent_http2};

use crate::fixture::{MinRate, ResourceLimits, TestGateway};

/// A gateway in front of a server that never responds.
async fn gateway(is_http2: bool, bounds: ResourceLimits) -> (TestGateway, AcceptLoop) {
    let silent = if is_http2 { silent_http2().await } else { silent_http1().await };
    let url = if is_http2 { silent.h2c() } else { silent.url() };
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"{url}\"] }} }}\nroutes: [{{ upstream: app }}]\n\
         rate_limits: {{ default: {{ requests: 1000, window: 1h }} }}\n"
    );
    (TestGateway::start(&policy, bounds), silent)
}

/// Sends `body`, and closes the sending side if it is complete. Returns the status and the body of the response.
async fn send_body(gateway: &TestGateway, framing: &str, body: &str, is_complete: bool) -> (u16, String) {
    let mut client = gateway.client().await;
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{body}").as_bytes()).await;
    if is_complete {
        client.shut_down().await;
    }
    let response = client.response().await.expect("a response");
    assert_eq!(response.header("connection"), Some("close"), "{}", response.text());
    (response.status, response.text())
}

fn failures(gateway: &TestGateway, reason: &str) -> u64 {
    gateway.metric(&format!("tidegate_upstream_failures_total{{upstream=\"app\",reason=\"{reason}\"}}"))
}

#[tokio::test]
async fn request_body_malformed_or_truncated_gets_400_and_is_no_upstream_failure() {
    const CHUNKED: &str = "Transfer-Encoding: chunked";
    let bodies = [
        (CHUNKED, "zz\r\nabc\r\n"),
        (CHUNKED, "3\r\nabcd\r\n0\r\n\r\n"),
        (CHUNKED, "3\r\nabc\r\n-1\r\n\r\n"),
        (CHUNKED, "10000000000000000\r\nabc"),
        (CHUNKED, "3\r\nabc\r\n"),
        (CHUNKED, "5\r\nabc"),
        (CHUNKED, "3\r\nabc\r\n0\r\n"),
        ("Content-Length: 5", "abc"),
    ];
    for is_http2 in [false, true] {
        let (gateway, _silent) = gateway(
            is_http2,
            ResourceLimits { response_timeout: Duration::from_secs(5), ..ResourceLimits::default() },
        )
        .await;
        for (turn, (framing, body)) in (1..).zip(bodies) {
            let (status, text) = send_body(&gateway, framing, body, true).await;
            assert_eq!(status, 400, "{is_http2}: {body:?}: {text}");
            assert!(text.contains("bad_body"), "{text}");
            assert_eq!(failures(&gateway, "abandoned"), turn);
        }
        for reason in ["broken", "too_slow", "unreachable"] {
            assert_eq!(failures(&gateway, reason), 0, "{reason}");
        }
    }
}

#[tokio::test]
async fn request_body_too_large_or_too_slow_is_no_upstream_failure() {
    for is_http2 in [false, true] {
        let request_min_rate = MinRate { period: Duration::from_millis(100), bytes: 1_000 };
        let (gateway, _silent) = gateway(
            is_http2,
            ResourceLimits { body_bytes: 4, request_min_rate, ..ResourceLimits::default() },
        )
        .await;
        let (status, text) = send_body(&gateway, "Transfer-Encoding: chunked", "5\r\nhello\r\n", false).await;
        assert_eq!(status, 413, "{is_http2}: {text}");
        let mut client = gateway.client().await;
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na").await;
        assert_eq!(client.response().await.map(|response| response.status), Some(408), "{is_http2}");
        assert_eq!((failures(&gateway, "abandoned"), failures(&gateway, "broken")), (2, 0), "{is_http2}");
    }
}
