//! Resent requests: unchanged if the server has certainly not processed them, and only idempotent ones otherwise.

use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use http::Response;
use tidegate_testkit::client::{DATA, GOAWAY, HEADERS, RawClient, SETTINGS, frame};
use tidegate_testkit::server::AcceptLoop;
use tidegate_testkit::wait::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fixture::{ResourceLimits, TestGateway};

/// A request as the upstream got it.
#[derive(Clone, Debug, PartialEq)]
struct ReceivedRequest {
    authority: String,
    path: String,
    headers: Vec<(String, String)>,
}

/// An HTTP/2 upstream. Each test decides about its first connections; over the later ones it responds to every request.
struct Http2Upstream {
    accepting: AcceptLoop,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    connections: watch::Sender<usize>,
}

impl Http2Upstream {
    /// `first` handles a connection and returns `None`, or returns the stream to have its requests get responses.
    async fn start<F, A>(first: F) -> Self
    where
        F: Fn(usize, TcpStream, Arc<Mutex<Vec<ReceivedRequest>>>) -> A + Send + Sync + 'static,
        A: Future<Output = Option<TcpStream>> + Send + 'static,
    {
        let (seen, connections) = (Arc::new(Mutex::new(Vec::new())), watch::Sender::new(0));
        let (shared, counted) = (Arc::clone(&seen), connections.clone());
        let accepting = AcceptLoop::start(move |number, stream| {
            counted.send_replace(number + 1);
            let (handled, seen) = (first(number, stream, Arc::clone(&shared)), Arc::clone(&shared));
            async move {
                if let Some(stream) = handled.await {
                    serve(stream, seen, usize::MAX).await;
                }
            }
        })
        .await;
        Self { accepting, seen, connections }
    }

    fn gateway(&self, bounds: ResourceLimits) -> TestGateway {
        let policy = format!(
            "upstreams: {{ app: {{ servers: [\"{}\"] }} }}\nroutes: [{{ upstream: app }}]\n\
             rate_limits: {{ default: {{ requests: 100000, window: 1h }} }}\n",
            self.accepting.h2c()
        );
        TestGateway::start(&policy, bounds)
    }

    fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().expect("no panic").clone()
    }

    fn connections(&self) -> usize {
        *self.connections.borrow()
    }
}

fn record(request: &http::Request<h2::RecvStream>, seen: &Mutex<Vec<ReceivedRequest>>) {
    let text = |value: &http::HeaderValue| value.to_str().expect("text").to_owned();
    let headers = request.headers().iter().map(|(name, value)| (name.to_string(), text(value)));
    let headers = headers.filter(|(name, _)| name != "x-request-id").collect();
    let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    let path = request.uri().path().to_owned();
    seen.lock().expect("no panic").push(ReceivedRequest { authority, path, headers });
}

/// Responds to every request with its body. After `most` requests it sends GOAWAY.
async fn serve(stream: TcpStream, seen: Arc<Mutex<Vec<ReceivedRequest>>>, most: usize) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let mut count = 0;
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        record(&request, &seen);
        count += 1;
        if count == most {
            connection.graceful_shutdown();
        }
        tokio::spawn(async move {
            let mut body = request.into_body();
            let mut echo = BytesMut::new();
            while let Some(Ok(data)) = body.data().await {
                echo.extend_from_slice(&data);
            }
            let mut stream = respond.send_response(Response::new(()), false).expect("a stream");
            stream.send_data(echo.freeze(), true).expect("capacity");
        });
    }
}

/// Reads and writes HTTP/2 frames without interpreting them.
pub(crate) struct FrameStream(pub(crate) TcpStream);

impl FrameStream {
    pub(crate) async fn accept(mut stream: TcpStream) -> Self {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.expect("a preface");
        let mut frames = Self(stream);
        frames.send(SETTINGS, 0, 0, &[]).await;
        frames
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.0.write_all(&frame(kind, flags, stream, payload)).await.expect("an open connection");
    }

    /// Reads until `count` frames of the kind `wanted` have arrived.
    pub(crate) async fn read(&mut self, wanted: u8, mut count: usize) {
        while count > 0 {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.expect("a frame");
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).await.expect("a payload");
            count -= usize::from(head[3] == wanted);
        }
    }

    /// Responds to the first request, so that the next ones use the same connection.
    pub(crate) async fn respond_to_first(&mut self) {
        self.read(HEADERS, 1).await;
        // `:status: 200` with END_HEADERS and END_STREAM.
        self.send(HEADERS, 0x5, 1, &[0x88]).await;
    }

    /// Sends GOAWAY: no stream above `last` was or will be processed.
    async fn send_goaway(&mut self, last: u32) {
        self.send(GOAWAY, 0, 0, &[last.to_be_bytes(), 0_u32.to_be_bytes()].concat()).await;
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: tenant.example\r\nX-A: 1\r\nX-A: 2\r\n\r\n")
}

#[tokio::test]
async fn http2_stream_above_the_last_of_goaway_is_resent_unchanged() {
    let upstream = Http2Upstream::start(|number, stream, _| async move {
        if number > 0 {
            return Some(stream);
        }
        let mut frames = FrameStream::accept(stream).await;
        frames.respond_to_first().await;
        frames.read(HEADERS, 3).await;
        frames.send_goaway(1).await;
        // It stays open: nothing but the frame says that the requests were not processed.
        frames.read(GOAWAY, 1).await;
        None
    })
    .await;
    let gateway = upstream.gateway(ResourceLimits::default());
    let (request, other) = (get("/a"), get("/b"));
    assert_eq!(gateway.send_raw(&request).await.status, 200);
    let responses =
        tokio::join!(gateway.send_raw(&request), gateway.send_raw(&request), gateway.send_raw(&request));
    for response in [responses.0, responses.1, responses.2] {
        assert_eq!(response.status, 200, "{}", response.text());
    }
    // The first request that is not resent shows what every one should look like.
    assert_eq!(gateway.send_raw(&other).await.status, 200);
    let seen = upstream.seen();
    assert_eq!(seen.len(), 4);
    let untouched = ReceivedRequest { path: "/a".to_owned(), ..seen[3].clone() };
    assert_eq!(untouched.authority, "tenant.example");
    assert!(seen[..3].iter().all(|resent| *resent == untouched), "{seen:#?}");
}

/// An upstream that may have processed one of the requests on its first connection.
async fn upstream_that_breaks_off() -> Http2Upstream {
    Http2Upstream::start(|number, stream, _| async move {
        if number > 0 {
            return Some(stream);
        }
        let mut frames = FrameStream::accept(stream).await;
        frames.respond_to_first().await;
        frames.read(HEADERS, 3).await;
        // Stream 3 may have been processed; 5 and 7 have not been.
        frames.send_goaway(3).await;
        None
    })
    .await
}

#[tokio::test]
async fn http2_stream_up_to_the_last_of_goaway_is_resent_if_it_is_idempotent() {
    let upstream = upstream_that_breaks_off().await;
    let gateway = upstream.gateway(ResourceLimits::default());
    let request = get("/a");
    assert_eq!(gateway.send_raw(&request).await.status, 200);
    let responses =
        tokio::join!(gateway.send_raw(&request), gateway.send_raw(&request), gateway.send_raw(&request));
    assert_eq!([responses.0.status, responses.1.status, responses.2.status], [200; 3]);
    let seen = upstream.seen();
    assert!(seen.len() == 3 && seen.iter().all(|resent| *resent == seen[0]), "{seen:#?}");
}

#[tokio::test]
async fn http2_stream_up_to_the_last_of_goaway_is_not_resent() {
    let upstream = upstream_that_breaks_off().await;
    let gateway = upstream.gateway(ResourceLimits::default());
    let request = "POST /a HTTP/1.1\r\nHost: tenant.example\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(gateway.send_raw(request).await.status, 200);
    let responses =
        tokio::join!(gateway.send_raw(request), gateway.send_raw(request), gateway.send_raw(request));
    let mut statuses = [responses.0.status, responses.1.status, responses.2.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 502]);
    assert_eq!(upstream.seen().len(), 2);
}

#[tokio::test]
async fn http2_stream_refused_is_resent_over_another_connection() {
    let upstream = Http2Upstream::start(|number, stream, _| async move {
        if number > 0 {
            return Some(stream);
        }
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        }
        None
    })
    .await;
    let gateway = upstream.gateway(ResourceLimits::default());
    for _ in 0..3 {
        assert_eq!(gateway.send_raw(&get("/a")).await.status, 200);
    }
    let seen = upstream.seen();
    assert!(seen.iter().all(|seen| seen.authority == "tenant.example"), "{seen:#?}");
    assert_eq!((seen.len(), upstream.connections()), (3, 2));
}

#[tokio::test]
async fn http2_stream_reset_for_another_reason_is_not_resent() {
    let upstream = Http2Upstream::start(|_, stream, seen| async move {
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            record(&request, &seen);
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
        }
        None
    })
    .await;
    let gateway = upstream.gateway(ResourceLimits::default());
    assert_eq!(gateway.send_raw(&get("/a")).await.status, 502);
    assert_eq!(upstream.seen().len(), 1);
}

#[tokio::test]
async fn http2_request_refused_repeatedly_gets_502() {
    let upstream = Http2Upstream::start(|_, stream, seen| async move {
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            record(&request, &seen);
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        }
        None
    })
    .await;
    let gateway = upstream.gateway(ResourceLimits::default());
    let response = gateway.send_raw(&get("/a")).await;
    assert_eq!(response.status, 502, "{}", response.text());
    assert!((2..=5).contains(&upstream.seen().len()), "{}", upstream.seen().len());
}

#[tokio::test]
async fn http2_request_with_an_unread_body_is_resent() {
    let upstream = Http2Upstream::start(|number, stream, _| async move {
        if number > 0 {
            return Some(stream);
        }
        let mut frames = FrameStream::accept(stream).await;
        frames.read(HEADERS, 1).await;
        frames.send_goaway(0).await;
        frames.read(GOAWAY, 1).await;
        None
    })
    .await;
    let gateway = upstream.gateway(ResourceLimits::default());
    let mut client = gateway.client().await;
    client.send(b"POST /a HTTP/1.1\r\nHost: tenant.example\r\nContent-Length: 3\r\n\r\n").await;
    let mut connections = upstream.connections.subscribe();
    within("it is resent", connections.wait_for(|count| *count == 2)).await.expect("a count");
    client.send(b"abc").await;
    let response = client.response().await.expect("a response");
    assert_eq!((response.status, response.text().as_str()), (200, "abc"));
    assert_eq!(upstream.seen()[0].authority, "tenant.example");
}

#[tokio::test]
async fn http2_request_with_a_partly_sent_body_is_not_resent() {
    let upstream = Http2Upstream::start(|number, stream, _| async move {
        if number > 0 {
            return Some(stream);
        }
        let mut frames = FrameStream::accept(stream).await;
        frames.read(DATA, 1).await;
        frames.send_goaway(0).await;
        frames.read(GOAWAY, 1).await;
        None
    })
    .await;
    let gateway = upstream.gateway(ResourceLimits::default());
    let mut client = gateway.client().await;
    client.send(b"POST /a HTTP/1.1\r\nHost: tenant.example\r\nContent-Length: 3\r\n\r\na").await;
    let response = client.response().await.expect("a response");
    assert_eq!((response.status, upstream.seen().len()), (502, 0));
}

#[tokio::test]
async fn http2_upstream_connections_that_end_gracefully_lose_no_request_and_no_host() {
    let upstream = Http2Upstream::start(|_, stream, seen| async move {
        serve(stream, seen, 3).await;
        None
    })
    .await;
    let gateway = upstream.gateway(ResourceLimits::default());
    let mut clients = JoinSet::new();
    for tenant in 0..20 {
        let address = gateway.address;
        clients.spawn(async move {
            let host = format!("tenant-{tenant}.example");
            let request = format!("POST /{tenant} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
            let mut client = RawClient::connect(address).await;
            for _ in 0..20 {
                client.send(request.as_bytes()).await;
                let response = client.response().await.expect("a response");
                assert_eq!(response.status, 200, "{}", response.text());
            }
        });
    }
    clients.join_all().await;
    let seen = upstream.seen();
    assert_eq!(seen.len(), 400);
    for ReceivedRequest { authority, path, .. } in seen {
        assert_eq!(authority, format!("tenant-{}.example", &path[1..]));
    }
}
