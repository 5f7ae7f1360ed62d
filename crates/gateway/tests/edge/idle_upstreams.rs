//! Connections to upstreams that nobody uses, or whose server has gone without a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tidegate_gateway::ResourceLimits;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::resent::Frames;
use crate::support::{Act, Served, Upstream, ok, until, within};

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na";

fn bounds() -> ResourceLimits {
    ResourceLimits { upstream_idle: Duration::from_millis(150), ..ResourceLimits::default() }
}

fn served(url: &str, bounds: ResourceLimits) -> Served {
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"{url}\"] }} }}\nroutes: [{{ upstream: app }}]\n\
         rate_limits: {{ default: {{ requests: 1000, window: 1h }} }}\n"
    );
    Served::start(&policy, bounds)
}

/// An HTTP/2 upstream that answers all but `/hang`, and how many connections it has.
async fn http2() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("h2c://{}", listener.local_addr().expect("an address"));
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let open = Arc::clone(&counted);
            open.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                let mut hanging = Vec::new();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    if request.uri().path() == "/hang" {
                        hanging.push(respond);
                        continue;
                    }
                    let mut body = respond.send_response(Response::new(()), false).expect("a stream");
                    body.send_data(Bytes::from_static(b"ok"), true).expect("room");
                }
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (url, open)
}

#[tokio::test]
async fn upstream_connection_idle_for_too_long_is_closed() {
    let upstream = Upstream::answering().await;
    let served = Served::before(&[&upstream], 100, bounds());
    assert_eq!(served.get("/").await.status, 200);
    assert_eq!(served.ask(POST).await.status, 200);
    until("both are closed", || upstream.open() == 0).await;
    assert_eq!(served.get("/").await.status, 200, "another is opened");
    assert_eq!(upstream.connections(), 3);
    let gauge = format!("tidegate_upstream_connections{{upstream=\"app\",server=\"{}\"}}", upstream.address);
    until("it is closed, too", || served.metric(&gauge) == 0).await;
}

#[tokio::test]
async fn upstream_connection_idle_for_too_long_is_closed_over_http2() {
    let (url, open) = http2().await;
    let served = served(&url, bounds());
    for _ in 0..2 {
        assert_eq!(served.get("/").await.status, 200);
        until("it is closed", || open.load(Ordering::SeqCst) == 0).await;
    }
}

#[tokio::test]
async fn upstream_connection_in_use_is_not_idle() {
    let (url, open) = http2().await;
    let slow = Upstream::doing(|turn| match turn {
        0 => Act::ReplyAndHang(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na".into()),
        _ => ok("ok"),
    })
    .await;
    let policy = format!(
        "upstreams: {{ a: {{ servers: [\"{url}\"] }}, b: {{ servers: [\"http://{}\"] }} }}\n\
         routes: [{{ path: /hang, upstream: a }}, {{ upstream: b }}]\n\
         rate_limits: {{ default: {{ requests: 1000, window: 1h }} }}\n",
        slow.address
    );
    let served = Served::start(&policy, bounds());
    let (mut over_http2, mut over_http1) = (served.client().await, served.client().await);
    over_http2.send(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    over_http1.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    over_http1.until_some().await;
    until("both are in use", || open.load(Ordering::SeqCst) == 1).await;
    // Others are opened and closed meanwhile.
    for _ in 0..2 {
        assert_eq!(served.get("/").await.status, 200);
        until("the idle one is closed", || slow.open() == 1).await;
    }
    assert_eq!(open.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn http2_upstream_that_answers_no_ping_is_closed() {
    for has_answered in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("h2c://{}", listener.local_addr().expect("an address"));
        let closed = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut frames = Frames::accept(stream).await;
            if has_answered {
                frames.answer_the_first().await;
            }
            // It reads, but says nothing.
            frames.0.read_to_end(&mut Vec::new()).await.expect("an end");
        });
        let served = served(
            &url,
            ResourceLimits { upstream_ping: Duration::from_millis(60), ..ResourceLimits::default() },
        );
        assert_eq!(served.get("/").await.status, if has_answered { 200 } else { 502 });
        within("the connection is closed", closed).await.expect("no panic");
    }
}

#[tokio::test]
async fn http2_upstream_with_few_streams_gets_more_connections() {
    // One stream at once, and the first is never answered.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("h2c://{}", listener.local_addr().expect("an address"));
    let arrived = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&arrived);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let arrived = Arc::clone(&counted);
            tokio::spawn(async move {
                let mut builder = h2::server::Builder::new();
                let mut connection =
                    builder.max_concurrent_streams(1).handshake(stream).await.expect("HTTP/2");
                let mut hanging = Vec::new();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    if request.uri().path() == "/hang" {
                        hanging.push(respond);
                        continue;
                    }
                    let mut body = respond.send_response(Response::new(()), false).expect("a stream");
                    body.send_data(Bytes::from_static(b"ok"), true).expect("room");
                }
            });
        }
    });
    let served = served(&url, ResourceLimits::default());
    // The gateway learns of the limit with the first responses.
    for _ in 0..2 {
        assert_eq!(served.get("/").await.status, 200);
    }
    let mut slow = served.client().await;
    slow.send(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    until("it has arrived", || arrived.load(Ordering::SeqCst) == 3).await;
    for _ in 0..3 {
        assert_eq!(within("a response", served.get("/")).await.status, 200);
    }
}
