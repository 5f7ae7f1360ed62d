//! Upstream connections that are idle, or whose server has stopped responding.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tidegate_testkit::server::{AcceptLoop, RecordingServer, Reply, ok};
use tidegate_testkit::wait::{eventually, within};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::retries::FrameStream;
use crate::fixture::{ResourceLimits, TestGateway};

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na";

/// More than any test opens.
const MANY_STREAMS: u32 = 100;

fn bounds() -> ResourceLimits {
    ResourceLimits { upstream_idle: Duration::from_millis(150), ..ResourceLimits::default() }
}

fn gateway(url: &str, bounds: ResourceLimits) -> TestGateway {
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"{url}\"] }} }}\nroutes: [{{ upstream: app }}]\n\
         rate_limits: {{ default: {{ requests: 1000, window: 1h }} }}\n"
    );
    TestGateway::start(&policy, bounds)
}

/// An HTTP/2 upstream that limits the concurrent streams of each connection.
struct Http2Upstream {
    accepting: AcceptLoop,
    open: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Http2Upstream {
    /// Responds to all paths but `/hang`.
    async fn start(streams: u32) -> Self {
        let (open, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = (Arc::clone(&open), Arc::clone(&requests));
        let accepting = AcceptLoop::start(move |_, stream| {
            let (open, requests) = counted.clone();
            open.fetch_add(1, Ordering::SeqCst);
            async move {
                let mut builder = h2::server::Builder::new();
                let handshake = builder.max_concurrent_streams(streams).handshake(stream);
                let mut connection = handshake.await.expect("HTTP/2");
                let mut hanging = Vec::new();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    requests.fetch_add(1, Ordering::SeqCst);
                    if request.uri().path() == "/hang" {
                        hanging.push(respond);
                        continue;
                    }
                    let mut body = respond.send_response(Response::new(()), false).expect("a stream");
                    body.send_data(Bytes::from_static(b"ok"), true).expect("capacity");
                }
                open.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .await;
        Self { accepting, open, requests }
    }

    fn url(&self) -> String {
        self.accepting.h2c()
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn upstream_connection_idle_beyond_the_timeout_is_closed() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, bounds());
    assert_eq!(gateway.get_raw("/").await.status, 200);
    assert_eq!(gateway.send_raw(POST).await.status, 200);
    upstream.until("both are closed", |counts| counts.open == 0).await;
    assert_eq!(gateway.get_raw("/").await.status, 200, "another is opened");
    assert_eq!(upstream.connections(), 3);
    let gauge = format!("tidegate_upstream_connections{{upstream=\"app\",server=\"{}\"}}", upstream.address);
    eventually("it is closed, too", || gateway.metric(&gauge) == 0).await;
}

#[tokio::test]
async fn http2_upstream_connection_idle_beyond_the_timeout_is_closed() {
    let http2 = Http2Upstream::start(MANY_STREAMS).await;
    let gateway = gateway(&http2.url(), bounds());
    for _ in 0..2 {
        assert_eq!(gateway.get_raw("/").await.status, 200);
        eventually("it is closed", || http2.open() == 0).await;
    }
}

#[tokio::test]
async fn upstream_connection_in_use_is_not_closed_as_idle() {
    let http2 = Http2Upstream::start(MANY_STREAMS).await;
    let slow = RecordingServer::scripted(|turn| match turn {
        0 => Reply::Hang(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na".into()),
        _ => ok("ok"),
    })
    .await;
    let policy = format!(
        "upstreams: {{ a: {{ servers: [\"{}\"] }}, b: {{ servers: [\"{}\"] }} }}\n\
         routes: [{{ path: /hang, upstream: a }}, {{ upstream: b }}]\n\
         rate_limits: {{ default: {{ requests: 1000, window: 1h }} }}\n",
        http2.url(),
        slow.url()
    );
    let gateway = TestGateway::start(&policy, bounds());
    let (mut over_http2, mut over_http1) = (gateway.client().await, gateway.client().await);
    over_http2.send(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    over_http1.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    over_http1.first_bytes().await;
    eventually("both are in use", || http2.open() == 1).await;
    // Others are opened and closed meanwhile.
    for _ in 0..2 {
        assert_eq!(gateway.get_raw("/").await.status, 200);
        slow.until("the idle one is closed", |counts| counts.open == 1).await;
    }
    assert_eq!(http2.open(), 1);
}

#[tokio::test]
async fn http2_upstream_connection_without_ping_responses_is_closed() {
    for has_responded in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("h2c://{}", listener.local_addr().expect("an address"));
        let closed = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut frames = FrameStream::accept(stream).await;
            if has_responded {
                frames.respond_to_first().await;
            }
            // The server reads, but sends nothing.
            frames.0.read_to_end(&mut Vec::new()).await.expect("an end");
        });
        let gateway = gateway(
            &url,
            ResourceLimits { upstream_ping: Duration::from_millis(60), ..ResourceLimits::default() },
        );
        assert_eq!(gateway.get_raw("/").await.status, if has_responded { 200 } else { 502 });
        within("the connection is closed", closed).await.expect("no panic");
    }
}

#[tokio::test]
async fn http2_upstream_with_few_streams_gets_more_connections() {
    let upstream = Http2Upstream::start(1).await;
    let gateway = gateway(&upstream.url(), ResourceLimits::default());
    // The gateway learns of the limit with the first responses.
    for _ in 0..2 {
        assert_eq!(gateway.get_raw("/").await.status, 200);
    }
    let mut slow = gateway.client().await;
    slow.send(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    eventually("it has arrived", || upstream.requests() == 3).await;
    for _ in 0..3 {
        assert_eq!(within("a response", gateway.get_raw("/")).await.status, 200);
    }
}
