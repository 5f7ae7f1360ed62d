//! Upstreams that respond before they have the complete request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use tidegate_testkit::client::http2_streams;
use tidegate_testkit::server::{AcceptLoop, RecordingServer, Reply};
use tidegate_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{ResourceLimits, TestGateway};

/// Larger than what sockets and HTTP/2 windows take at once.
const EARLY_BYTES: usize = 6 << 20;

/// An upstream that responds to `POST /early` as soon as it has the head, then reads the body. To all other requests it
/// responds after the body.
struct EarlyUpstream {
    accepting: AcceptLoop,
    open: Arc<AtomicUsize>,
}

impl EarlyUpstream {
    async fn start(early_bytes: usize) -> Self {
        let open = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&open);
        let accepting = AcceptLoop::start(move |_, stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            let open = Arc::clone(&counted);
            async move {
                // How the connection ends is the gateway's choice.
                let _ = respond(stream, early_bytes).await;
                open.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .await;
        Self { accepting, open }
    }

    fn gateway(&self, bounds: ResourceLimits) -> TestGateway {
        gateway(&self.accepting.url(), bounds)
    }
}

fn gateway(url: &str, bounds: ResourceLimits) -> TestGateway {
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"{url}\"] }} }}\nroutes: [{{ upstream: app }}]\n\
         rate_limits: {{ default: {{ requests: 1000, window: 1h }} }}\n"
    );
    TestGateway::start(&policy, bounds)
}

async fn respond(mut stream: TcpStream, early_bytes: usize) -> std::io::Result<()> {
    let mut unread = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = unread.windows(4).position(|end| end == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut unread).await? == 0 {
                return Ok(());
            }
        };
        let head = String::from_utf8_lossy(&unread[..end]).to_ascii_lowercase();
        unread.drain(..end);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |length| length.trim().parse().expect("a length"));
        let is_early = head.starts_with("post /early");
        let body = vec![b'x'; if is_early { early_bytes } else { 4 }];
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        if is_early {
            stream.write_all(response.as_bytes()).await?;
            stream.write_all(&body).await?;
        }
        while unread.len() < length {
            if stream.read_buf(&mut unread).await? == 0 {
                return Ok(());
            }
        }
        unread.drain(..length);
        if !is_early {
            stream.write_all(response.as_bytes()).await?;
            stream.write_all(&body).await?;
        }
    }
}

const VICTIM: &str = "POST /victim HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";

#[tokio::test]
async fn upstream_connection_with_an_unfinished_upload_is_not_reused() {
    let upstream = EarlyUpstream::start(4).await;
    let gateway = upstream.gateway(ResourceLimits {
        response_timeout: Duration::from_millis(500),
        ..ResourceLimits::default()
    });
    let (client, _connection) = http2_streams(gateway.address).await;
    let mut dripping = Vec::new();
    for _ in 0..10 {
        let mut client = within("capacity", client.clone().ready()).await.expect("the connection is open");
        let request = Request::post("http://a/early").header("content-length", "1000").body(()).expect("one");
        let (response, mut upload) = client.send_request(request, false).expect("a stream");
        upload.send_data(Bytes::from_static(b"a"), false).expect("capacity");
        let mut response = within("an early response", response).await.expect("an early response");
        assert_eq!(response.status(), StatusCode::OK);
        while let Some(data) = within("its body", response.body_mut().data()).await {
            let data = data.expect("a complete body");
            response.body_mut().flow_control().release_capacity(data.len()).expect("a window");
        }
        dripping.push(upload);
    }
    let victims: Vec<_> = (0..12).map(|_| gateway.send_raw(VICTIM)).collect();
    for victim in victims {
        assert_eq!(within("a victim's response", victim).await.status, 200);
    }
    drop(dripping);
}

#[tokio::test]
async fn upstream_connection_with_an_unfinished_upload_is_closed_after_the_response() {
    let upstream = EarlyUpstream::start(4).await;
    let gateway = upstream.gateway(ResourceLimits::default());
    let mut client = gateway.client().await;
    client.send(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\na").await;
    assert_eq!(client.response().await.map(|response| response.status), Some(200));
    eventually("the upstream's connection is closed", || upstream.open.load(Ordering::SeqCst) == 0).await;
    // A complete upload keeps its connection.
    for _ in 0..3 {
        assert_eq!(gateway.send_raw(VICTIM).await.status, 200);
        assert_eq!(upstream.open.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn early_response_to_an_unfinished_upload_is_delivered_completely() {
    let upstream = EarlyUpstream::start(EARLY_BYTES).await;
    let gateway = upstream.gateway(ResourceLimits::default());
    let mut client = gateway.client().await;
    client.send(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\na").await;
    let response = client.response().await.expect("a complete response");
    assert_eq!((response.status, response.body.len()), (200, EARLY_BYTES));

    let (client, _connection) = http2_streams(gateway.address).await;
    let mut client = within("capacity", client.ready()).await.expect("capacity");
    let request = Request::post("http://a/early").header("content-length", "1000").body(()).expect("one");
    let (response, mut upload) = client.send_request(request, false).expect("a stream");
    upload.send_data(Bytes::from_static(b"a"), false).expect("capacity");
    let mut response = within("an early response", response).await.expect("an early response");
    let mut length = 0;
    while let Some(data) = within("its body", response.body_mut().data()).await {
        let data = data.expect("a complete body");
        length += data.len();
        response.body_mut().flow_control().release_capacity(data.len()).expect("a window");
    }
    assert_eq!((response.status(), length), (StatusCode::OK, EARLY_BYTES));
}

#[tokio::test]
async fn early_response_before_the_upstream_closes_is_delivered() {
    // The upstream sends 413 and closes while most of the upload is unread, so the system resets the connection.
    let closing = AcceptLoop::start(|_, mut stream| async move {
        let mut head = vec![0; 16 << 10];
        let _ = stream.read(&mut head).await;
        let _ = stream.write_all(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 3\r\n\r\nbig").await;
    })
    .await;
    let gateway = gateway(&closing.url(), ResourceLimits::default());
    for turn in 0..30 {
        let mut client = gateway.client().await;
        let size = 4 << 20;
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n").as_bytes()).await;
        client.send(&vec![b'a'; size]).await;
        let response = client.response().await.expect("a response");
        assert_eq!((response.status, response.text().as_str()), (413, "big"), "{turn}");
    }
}

#[tokio::test]
async fn http2_upstream_stream_with_an_unfinished_upload_is_reset_after_the_response() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("h2c://{}", listener.local_addr().expect("an address"));
    let (ends, mut ended) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let mut body = respond.send_response(http::Response::new(()), false).expect("a stream");
            body.send_data(Bytes::from_static(b"early"), true).expect("capacity");
            let ends = ends.clone();
            tokio::spawn(async move {
                let mut upload = request.into_body();
                while let Some(data) = upload.data().await {
                    if let Err(error) = data {
                        ends.send(error.reason()).expect("a receiver");
                        return;
                    }
                }
            });
        }
    });
    let gateway = gateway(&url, ResourceLimits::default());
    for _ in 0..2 {
        let mut client = gateway.client().await;
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\na").await;
        assert_eq!(client.response().await.map(|response| response.body), Some(b"early".to_vec()));
        let reason = within("the upload is reset", ended.recv()).await.expect("an end");
        assert_eq!(reason, Some(h2::Reason::CANCEL));
    }
}

#[tokio::test]
async fn upstream_connection_after_complete_exchanges_is_reused() {
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let upstream = RecordingServer::scripted(|_| Reply::Keep(chunked.to_vec())).await;
    let gateway = TestGateway::with_limit(&[&upstream], 10_000, ResourceLimits::default());
    let mut client = gateway.client().await;
    for _ in 0..50 {
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello").await;
        assert_eq!(client.response().await.expect("a response").body, b"hello");
    }
    assert_eq!((upstream.requests().len(), upstream.connections()), (50, 1));
}
