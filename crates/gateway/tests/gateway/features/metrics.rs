//! Metrics: every decision, response and failure is counted once.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::Empty;
use tidegate_testkit::client::http1;
use tidegate_testkit::server::{HttpServer, RecordingServer};
use tidegate_testkit::wait::{eventually, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixture::{TestGateway, ticking};

const TWO: &str = "rate_limits: { default: { requests: 2, window: 1h, algorithm: sliding_window_log } }";

#[tokio::test]
async fn decisions_and_responses_are_counted() {
    let upstream = HttpServer::named("served").await;
    let gateway =
        TestGateway::before(&[upstream.url()], &format!("clients: {{ api_key: {{ verify: none }} }}\n{TWO}"));
    for status in [200, 200, 429, 429, 429] {
        assert_eq!(gateway.get_with("/", &[("x-api-key", "sk_live_51H_very_secret")]).await.status, status);
    }
    let decided = |what: &str| {
        gateway.metric(&format!("rate_limit_requests_total{{decision=\"{what}\",protocol=\"gateway\"}}"))
    };
    assert_eq!((decided("admitted"), decided("rejected"), decided("banned")), (2, 3, 0));
    let exceeded = |client: &str| {
        gateway.metric(&format!("rate_limit_exceeded_total{{client_id=\"{client}\",rule=\"default\"}}"))
    };
    assert_eq!(
        (exceeded("api_key:sk_l…#b59c1698"), exceeded("other")),
        (3, 0),
        "an API key is never shown in full"
    );
    assert_eq!(gateway.metric("rate_limit_latency_count{protocol=\"gateway\"}"), 5);
    assert_eq!(gateway.metric("tidegate_responses_total{code=\"2xx\",protocol=\"gateway\"}"), 2);
    assert_eq!(gateway.metric("tidegate_responses_total{code=\"4xx\",protocol=\"gateway\"}"), 3);
    assert_eq!(gateway.metric("tidegate_upstream_requests_total{upstream=\"api\",code=\"2xx\"}"), 2);
    assert_eq!(gateway.metric("tidegate_connections_accepted_total{protocol=\"gateway\"}"), 5);
    assert_eq!(gateway.metric("rate_limit_limit{rule=\"default\",window=\"1h\"}"), 2);
    let healthy = format!(
        "tidegate_upstream_healthy{{upstream=\"api\",server=\"{}\"}}",
        upstream.url().replace("http://", "")
    );
    assert_eq!(gateway.metric(&healthy), 1);
    let connections = healthy.replace("healthy", "connections");
    // The two requests may share a connection or not.
    assert!((1..=2).contains(&gateway.metric(&connections)));
}

#[tokio::test]
async fn counters_continue_after_a_reload() {
    let upstream = HttpServer::named("served").await;
    let gateway = TestGateway::before(&[upstream.url()], TWO);
    gateway.get("/").await;
    gateway.replace(
        &[upstream.url()],
        "rate_limits: { default: { requests: 1, window: 1h, algorithm: sliding_window_log } }",
    );
    assert_eq!(gateway.get("/").await.status, 429);
    assert_eq!(gateway.metric("rate_limit_requests_total{decision=\"admitted\",protocol=\"gateway\"}"), 1);
    assert_eq!(gateway.metric("tidegate_upstream_requests_total{upstream=\"api\",code=\"2xx\"}"), 1);
    assert_eq!(gateway.metric("rate_limit_limit{rule=\"default\",window=\"1h\"}"), 1);
}

#[tokio::test]
async fn rule_in_shadow_mode_counts_shadow_rejections_only() {
    let upstream = HttpServer::named("served").await;
    let gateway = TestGateway::before(
        &[upstream.url()],
        "rate_limits: { default: { requests: 1, window: 1h, mode: shadow } }",
    );
    for _ in 0..4 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    assert_eq!(gateway.metric("rate_limit_shadow_exceeded_total{rule=\"default\"}"), 3);
    assert_eq!(gateway.metric("rate_limit_requests_total{decision=\"admitted\",protocol=\"gateway\"}"), 4);
    assert_eq!(gateway.metric("rate_limit_exceeded_total{client_id=\"other\",rule=\"default\"}"), 0);
}

#[tokio::test]
async fn client_that_disconnects_is_counted_as_gone() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = TestGateway::before(&[format!("http://{}", upstream.local_addr().unwrap())], TWO);
    let mut client = http1(gateway.address).await;
    let request_task = tokio::spawn(async move {
        let request = Request::get("/").header("host", "test").body(Empty::<Bytes>::new()).unwrap();
        client.send_request(request).await.map(|_| ())
    });
    let _connection = soon(upstream.accept()).await.unwrap();
    request_task.abort();
    eventually("it is counted as gone", || {
        gateway.metric("tidegate_responses_total{code=\"gone\",protocol=\"gateway\"}") > 0
    })
    .await;
    let failed = |why: &str| {
        gateway.metric(&format!("tidegate_upstream_failures_total{{upstream=\"api\",reason=\"{why}\"}}"))
    };
    assert_eq!((failed("abandoned"), failed("broken")), (1, 0));
    assert_eq!(gateway.metric("rate_limit_requests_total{decision=\"admitted\",protocol=\"gateway\"}"), 1);
}

#[tokio::test]
async fn idle_upstream_connection_closed_by_its_server_is_dropped() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server_address = server.local_addr().unwrap();
    let bounds = ticking(Duration::from_millis(5));
    let gateway = TestGateway::with(&[format!("http://{server_address}")], TWO, &[], bounds);
    let open = || {
        gateway
            .metric(&format!("tidegate_upstream_connections{{upstream=\"api\",server=\"{server_address}\"}}"))
    };
    let serving = async {
        let (mut stream, _) = server.accept().await.unwrap();
        stream.read_buf(&mut BytesMut::with_capacity(4096)).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        stream
    };
    let (stream, response) = soon(async { tokio::join!(serving, gateway.get("/")) }).await;
    assert_eq!((response.text(), open()), ("ok", 1), "the connection is kept");
    drop(stream);
    eventually("the connection is closed", || open() == 0).await;
}

#[tokio::test]
async fn unreachable_server_is_counted_as_a_failure() {
    let unreachable = RecordingServer::unreachable();
    let url = unreachable.url();
    let gateway = TestGateway::before(&[url], TWO);
    assert_eq!(gateway.get("/").await.status, 502);
    let failed = "tidegate_upstream_failures_total{upstream=\"api\",reason=\"unreachable\"}";
    assert_eq!(gateway.metric(failed), 1);
    assert_eq!(gateway.metric("tidegate_responses_total{code=\"5xx\",protocol=\"gateway\"}"), 1);
}
