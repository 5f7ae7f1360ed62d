//! Requests that are sent again after a server may have received them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_testkit::server::{AcceptLoop, RecordingServer, Reply, ok};
use tidegate_testkit::wait::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{GET, LIMIT, POST, PUT, policy, status};
use crate::fixture::{ResourceLimits, TestGateway};

/// Closes the connection without a response, except to every request from `first_ok` on.
async fn closes_until(first_ok: usize) -> RecordingServer {
    RecordingServer::scripted(move |turn| if turn < first_ok { Reply::Close(Vec::new()) } else { ok("ok") })
        .await
}

fn gateway(servers: &[&RecordingServer], settings: &str) -> TestGateway {
    let urls: Vec<_> = servers.iter().map(|server| server.url()).collect();
    TestGateway::start(&policy(&urls, settings, LIMIT), ResourceLimits::default())
}

#[tokio::test]
async fn idempotent_request_without_a_response_byte_is_sent_again() {
    for request in [GET, PUT, "DELETE / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let upstream = closes_until(1).await;
        let gateway = gateway(&[&upstream], "");
        let response = gateway.send_raw(request).await;
        assert_eq!(response.status, 200, "{request}: {}", response.text());
        assert_eq!(response.remaining(), 999, "charged once");
        let seen = upstream.requests();
        assert_eq!((seen.len(), gateway.upstream().retries), (2, 1), "{request}");
        assert_eq!(seen[0].body, seen[1].body);
        assert_eq!(seen[0].header("x-request-id"), seen[1].header("x-request-id"));
    }
}

#[tokio::test]
async fn post_without_a_response_is_not_sent_again_unless_the_policy_says_so() {
    let upstream = closes_until(1).await;
    let response = gateway(&[&upstream], "").send_raw(POST).await;
    assert_eq!((response.status, upstream.count()), (502, 1));
    let upstream = closes_until(1).await;
    let response = gateway(&[&upstream], "retry: { methods: [GET, POST] }").send_raw(POST).await;
    assert_eq!((response.status, upstream.count()), (200, 2));
    assert_eq!(upstream.last().body, b"abc");
}

#[tokio::test]
async fn request_with_a_response_byte_is_not_sent_again() {
    for part in ["H", "HTTP/1.1 200 OK\r\nContent-Le"] {
        for request in [GET, PUT] {
            let upstream = RecordingServer::scripted(move |_| Reply::Close(part.into())).await;
            let response = gateway(&[&upstream], "").send_raw(request).await;
            assert_eq!((response.status, upstream.count()), (502, 1), "{part:?}");
        }
    }
}

#[tokio::test]
async fn retry_goes_to_another_server_first() {
    let (closing, working) = (closes_until(usize::MAX).await, RecordingServer::start().await);
    let gateway = gateway(&[&closing, &working], "eject: off");
    for _ in 0..10 {
        assert_eq!(gateway.send_raw(GET).await.status, 200);
    }
    assert_eq!((closing.count(), working.count()), (5, 10));
}

#[tokio::test]
async fn status_of_the_policy_is_retried_and_the_last_response_is_forwarded() {
    let settings = "retry: { attempts: 3, on: [502, 503], base: 1ms, cap: 2ms }";
    for request in [GET, PUT] {
        let upstream = RecordingServer::scripted(|turn| match turn {
            0 => Reply::Keep(status("503 Service Unavailable", "")),
            1 => Reply::Keep(status("502 Bad Gateway", "")),
            _ => ok("ok"),
        })
        .await;
        let response = gateway(&[&upstream], settings).send_raw(request).await;
        assert_eq!((response.status, response.text().as_str(), upstream.count()), (200, "ok", 3));
        assert!(upstream.requests().iter().all(|seen| seen.body == upstream.last().body));
    }
    let failing =
        RecordingServer::scripted(|_| Reply::Keep(status("503 Service Unavailable", "X-A: b\r\n"))).await;
    let gateway = gateway(&[&failing], settings);
    let response = gateway.send_raw(GET).await;
    assert_eq!((response.status, response.header("x-a"), failing.count()), (503, Some("b"), 3));
    assert_eq!(gateway.send_raw(POST).await.status, 503);
    assert_eq!(failing.count(), 4, "POST is not repeated");
}

#[tokio::test]
async fn retry_after_of_a_503_is_honoured_within_the_total_time() {
    let settings = "retry: { attempts: 2, on: [503], base: 1ms, cap: 2ms }";
    for (seconds, attempts) in [("0", 2), ("3600", 1)] {
        let header = format!("Retry-After: {seconds}\r\n");
        let upstream = RecordingServer::scripted(move |turn| match turn {
            0 => Reply::Keep(status("503 Service Unavailable", &header)),
            _ => ok("ok"),
        })
        .await;
        let response = gateway(&[&upstream], settings).send_raw(GET).await;
        assert_eq!(upstream.count(), attempts, "{seconds}");
        assert_eq!(response.status, if attempts == 2 { 200 } else { 503 });
    }
}

#[tokio::test]
async fn timeout_is_retried_only_if_the_policy_says_so() {
    for (on, attempts, expected) in [("timeout", 2, 200), ("reset", 1, 504)] {
        let upstream =
            RecordingServer::scripted(|turn| if turn == 0 { Reply::Hang(Vec::new()) } else { ok("ok") });
        let upstream = upstream.await;
        let settings = format!("timeouts: {{ request: 50ms }}, retry: {{ on: [{on}], base: 1ms, cap: 2ms }}");
        let response = gateway(&[&upstream], &settings).send_raw(GET).await;
        assert_eq!((response.status, upstream.count()), (expected, attempts), "{on}");
    }
}

#[tokio::test]
async fn body_above_the_buffer_is_not_sent_again() {
    for (length, expected) in [(1_000, 200), (1_025, 502)] {
        let upstream = closes_until(1).await;
        let gateway = gateway(&[&upstream], "retry: { buffer: 1KiB }");
        let body = "x".repeat(length);
        let request = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
        assert_eq!(gateway.send_raw(&request).await.status, expected, "{length}");
        assert!(upstream.requests().iter().all(|seen| seen.body == body.as_bytes()));
    }
}

#[tokio::test]
async fn chunked_body_with_trailers_is_sent_again_completely() {
    let upstream = closes_until(1).await;
    let gateway = gateway(&[&upstream], "");
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n";
    let response = gateway.send_raw(&format!("{head}3\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n")).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let seen = upstream.requests();
    assert!(seen.len() == 2 && seen.iter().all(|seen| seen.body == b"abcde"), "{seen:?}");
    assert!(seen.iter().all(|seen| seen.trailers.to_ascii_lowercase().contains("x-sum: 5")), "{seen:?}");
}

/// Servers that reset connections in the middle of a body: whatever a server receives completely is the whole body.
#[tokio::test]
async fn body_with_resets_in_its_middle_is_never_sent_in_part() {
    let resets = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&resets);
    let resetting = AcceptLoop::start(move |_, mut stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let _ = stream.read(&mut [0; 700]).await;
            let _ = stream.set_zero_linger();
        }
    })
    .await;
    let complete = RecordingServer::start().await;
    let settings = "eject: off, retry: { budget: 100% }";
    let policy = policy(&[resetting.url(), complete.url()], settings, LIMIT);
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    for turn in 0..20_u8 {
        let body: Vec<u8> = (0..=255).cycle().map(|n: u8| b'a' + (n ^ turn) % 26).take(40_000).collect();
        let mut client = gateway.client().await;
        client
            .send(format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes())
            .await;
        // In two parts, so that the connection breaks before the body is complete.
        client.send(&body[..20_000]).await;
        client.send(&body[20_000..]).await;
        let response = client.response().await.expect("a response");
        assert_eq!(response.status, 200, "{turn}: {}", response.text());
        assert!(complete.last().body == body, "{turn}: another body");
    }
    assert!(resets.load(Ordering::SeqCst) >= 5);
    assert_eq!(complete.count(), 20);
}

/// The first server responds before it has the body; the body outgrows the buffer while the retry waits.
#[tokio::test]
async fn body_that_outgrows_the_buffer_during_the_wait_is_not_sent_again() {
    let early = AcceptLoop::start(|_, mut stream| async move {
        let _ = stream.read(&mut [0; 700]).await;
        let _ = stream.write_all(&status("503 Service Unavailable", "")).await;
        while stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
    })
    .await;
    let other = RecordingServer::start().await;
    let settings = "breaker: { failures: 1 }, eject: { after: 1 }, \
                    retry: { on: [connect, reset, 503], base: 200ms, cap: 200ms, jitter: none, buffer: 1KiB, budget: 100% }";
    let policy = policy(&[early.url(), other.url()], settings, LIMIT);
    let gateway = TestGateway::start(&policy, ResourceLimits::default());
    let mut client = gateway.client().await;
    client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
    let breaker = |index: usize| gateway.upstream().servers[index].breaker.expect("a breaker");
    let failed = "tidegate_upstream_requests_total{upstream=\"app\",code=\"5xx\"} 1\n";
    eventually("the first response", || gateway.metrics().contains(failed)).await;
    client.send(&[b"4000\r\n", &[b'x'; 0x4000][..], b"\r\n"].concat()).await;
    let response = client.response().await.expect("a response");
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!((other.count(), breaker(0).opened), (0, 0), "a server without the whole body is not to blame");
    assert_eq!(breaker(1).opened, 0, "a server that got nothing is not to blame");
    assert_eq!(gateway.send_raw(GET).await.status, 200);
}

#[tokio::test]
async fn retries_with_everything_failing_stay_within_the_budget() {
    for (settings, retries) in [("", 110), ("retry: { budget: { share: 10%, floor: 0 } }", 100)] {
        let failing = closes_until(usize::MAX).await;
        let text = policy(&[failing.url()], settings, &LIMIT.replace("1000", "100000"));
        let gateway = TestGateway::start_at(super::manual_clock(), &text);
        let mut client = gateway.client().await;
        for _ in 0..1_000 {
            client.send(GET.as_bytes()).await;
            assert_eq!(client.response().await.map(|response| response.status), Some(502));
        }
        assert_eq!(failing.count(), 1_000 + retries, "a tenth, and the floor of this second");
        let status = gateway.upstream();
        assert_eq!((status.retries, status.retry_budget_left), (retries as u64, 0));
    }
}

#[tokio::test]
async fn retries_turned_off_are_not_made() {
    let upstream = closes_until(1).await;
    let response = gateway(&[&upstream], "retry: off").send_raw(GET).await;
    assert_eq!((response.status, upstream.count()), (502, 1));
}
