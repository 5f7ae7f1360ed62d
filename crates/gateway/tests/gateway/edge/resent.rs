//! Requests that a server has certainly not processed: they are sent again, as they were.

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
struct RequestSummary {
    authority: String,
    path: String,
    headers: Vec<(String, String)>,
}

/// An HTTP/2 upstream. What it does with its first connections is each test's choice; those after that it serves.
struct Http2 {
    accepting: AcceptLoop,
    seen: Arc<Mutex<Vec<RequestSummary>>>,
    connections: watch::Sender<usize>,
}

impl Http2 {
    /// `first` handles the connections that it returns none for; the others are served.
    async fn start<F, A>(first: F) -> Self
    where
        F: Fn(usize, TcpStream, Arc<Mutex<Vec<RequestSummary>>>) -> A + Send + Sync + 'static,
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

    fn served(&self, bounds: ResourceLimits) -> TestGateway {
        let policy = format!(
            "upstreams: {{ app: {{ servers: [\"{}\"] }} }}\nroutes: [{{ upstream: app }}]\n\
             rate_limits: {{ default: {{ requests: 100000, window: 1h }} }}\n",
            self.accepting.h2c()
        );
        TestGateway::start(&policy, bounds)
    }

    fn seen(&self) -> Vec<RequestSummary> {
        self.seen.lock().expect("no panic").clone()
    }

    fn connections(&self) -> usize {
        *self.connections.borrow()
    }
}

fn note(request: &http::Request<h2::RecvStream>, seen: &Mutex<Vec<RequestSummary>>) {
    let text = |value: &http::HeaderValue| value.to_str().expect("text").to_owned();
    let headers = request.headers().iter().map(|(name, value)| (name.to_string(), text(value)));
    let headers = headers.filter(|(name, _)| name != "x-request-id").collect();
    let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    let path = request.uri().path().to_owned();
    seen.lock().expect("no panic").push(RequestSummary { authority, path, headers });
}

/// Answers every request with its body. After so many requests it says that it takes no more.
async fn serve(stream: TcpStream, seen: Arc<Mutex<Vec<RequestSummary>>>, most: usize) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let mut count = 0;
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        note(&request, &seen);
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
            stream.send_data(echo.freeze(), true).expect("room");
        });
    }
}

/// Speaks frames over a connection without understanding them.
pub(crate) struct Frames(pub(crate) TcpStream);

impl Frames {
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

    /// Reads until so many frames of a kind have come.
    async fn read(&mut self, wanted: u8, mut count: usize) {
        while count > 0 {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.expect("a frame");
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).await.expect("a payload");
            count -= usize::from(head[3] == wanted);
        }
    }

    /// Answers the first request, so that the next ones come over the same connection.
    pub(crate) async fn answer_the_first(&mut self) {
        self.read(HEADERS, 1).await;
        // `:status: 200` with END_HEADERS and END_STREAM.
        self.send(HEADERS, 0x5, 1, &[0x88]).await;
    }

    /// Says that no stream above `last` was or will be processed.
    async fn go_away(&mut self, last: u32) {
        self.send(GOAWAY, 0, 0, &[last.to_be_bytes(), 0_u32.to_be_bytes()].concat()).await;
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: tenant.example\r\nX-A: 1\r\nX-A: 2\r\n\r\n")
}

#[tokio::test]
async fn http2_stream_above_the_last_of_goaway_is_resent_as_it_was() {
    let upstream = Http2::start(|number, stream, _| async move {
        if number > 0 {
            return Some(stream);
        }
        let mut frames = Frames::accept(stream).await;
        frames.answer_the_first().await;
        frames.read(HEADERS, 3).await;
        frames.go_away(1).await;
        // It stays open: nothing but the frame says that the requests were not processed.
        frames.read(GOAWAY, 1).await;
        None
    })
    .await;
    let served = upstream.served(ResourceLimits::default());
    let (request, other) = (get("/a"), get("/b"));
    assert_eq!(served.send_raw(&request).await.status, 200);
    let answers =
        tokio::join!(served.send_raw(&request), served.send_raw(&request), served.send_raw(&request));
    for answer in [answers.0, answers.1, answers.2] {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // The first request that is not resent shows what every one should look like.
    assert_eq!(served.send_raw(&other).await.status, 200);
    let seen = upstream.seen();
    assert_eq!(seen.len(), 4);
    let untouched = RequestSummary { path: "/a".to_owned(), ..seen[3].clone() };
    assert_eq!(untouched.authority, "tenant.example");
    assert!(seen[..3].iter().all(|resent| *resent == untouched), "{seen:#?}");
}

#[tokio::test]
async fn http2_stream_up_to_the_last_of_goaway_is_not_resent() {
    let upstream = Http2::start(|number, stream, _| async move {
        if number > 0 {
            return Some(stream);
        }
        let mut frames = Frames::accept(stream).await;
        frames.answer_the_first().await;
        frames.read(HEADERS, 3).await;
        // Stream 3 may have been processed; 5 and 7 have not been.
        frames.go_away(3).await;
        None
    })
    .await;
    let served = upstream.served(ResourceLimits::default());
    let request = get("/a");
    assert_eq!(served.send_raw(&request).await.status, 200);
    let answers =
        tokio::join!(served.send_raw(&request), served.send_raw(&request), served.send_raw(&request));
    let mut statuses = [answers.0.status, answers.1.status, answers.2.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 502]);
    assert_eq!(upstream.seen().len(), 2);
}

#[tokio::test]
async fn http2_stream_refused_is_resent_over_another_connection() {
    let upstream = Http2::start(|number, stream, _| async move {
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
    let served = upstream.served(ResourceLimits::default());
    for _ in 0..3 {
        assert_eq!(served.send_raw(&get("/a")).await.status, 200);
    }
    let seen = upstream.seen();
    assert!(seen.iter().all(|seen| seen.authority == "tenant.example"), "{seen:#?}");
    assert_eq!((seen.len(), upstream.connections()), (3, 2));
}

#[tokio::test]
async fn http2_stream_reset_for_another_reason_is_not_resent() {
    let upstream = Http2::start(|_, stream, seen| async move {
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            note(&request, &seen);
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
        }
        None
    })
    .await;
    let served = upstream.served(ResourceLimits::default());
    assert_eq!(served.send_raw(&get("/a")).await.status, 502);
    assert_eq!(upstream.seen().len(), 1);
}

#[tokio::test]
async fn http2_request_refused_again_and_again_is_a_502() {
    let upstream = Http2::start(|_, stream, seen| async move {
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            note(&request, &seen);
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        }
        None
    })
    .await;
    let served = upstream.served(ResourceLimits::default());
    let answer = served.send_raw(&get("/a")).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!((2..=5).contains(&upstream.seen().len()), "{}", upstream.seen().len());
}

#[tokio::test]
async fn http2_request_body_unread_is_resent_with_its_request() {
    let upstream = Http2::start(|number, stream, _| async move {
        if number > 0 {
            return Some(stream);
        }
        let mut frames = Frames::accept(stream).await;
        frames.read(HEADERS, 1).await;
        frames.go_away(0).await;
        frames.read(GOAWAY, 1).await;
        None
    })
    .await;
    let served = upstream.served(ResourceLimits::default());
    let mut client = served.client().await;
    client.send(b"POST /a HTTP/1.1\r\nHost: tenant.example\r\nContent-Length: 3\r\n\r\n").await;
    let mut connections = upstream.connections.subscribe();
    within("it is resent", connections.wait_for(|count| *count == 2)).await.expect("a count");
    client.send(b"abc").await;
    let answer = client.response().await.expect("a response");
    assert_eq!((answer.status, answer.text().as_str()), (200, "abc"));
    assert_eq!(upstream.seen()[0].authority, "tenant.example");
}

#[tokio::test]
async fn http2_request_body_begun_is_not_resent() {
    let upstream = Http2::start(|number, stream, _| async move {
        if number > 0 {
            return Some(stream);
        }
        let mut frames = Frames::accept(stream).await;
        frames.read(DATA, 1).await;
        frames.go_away(0).await;
        frames.read(GOAWAY, 1).await;
        None
    })
    .await;
    let served = upstream.served(ResourceLimits::default());
    let mut client = served.client().await;
    client.send(b"POST /a HTTP/1.1\r\nHost: tenant.example\r\nContent-Length: 3\r\n\r\na").await;
    let answer = client.response().await.expect("a response");
    assert_eq!((answer.status, upstream.seen().len()), (502, 0));
}

#[tokio::test]
async fn http2_connections_that_end_gracefully_lose_no_request_and_no_host() {
    let upstream = Http2::start(|_, stream, seen| async move {
        serve(stream, seen, 3).await;
        None
    })
    .await;
    let served = upstream.served(ResourceLimits::default());
    let mut asking = JoinSet::new();
    for tenant in 0..20 {
        let address = served.address;
        asking.spawn(async move {
            let host = format!("tenant-{tenant}.example");
            let request = format!("POST /{tenant} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
            let mut client = RawClient::connect(address).await;
            for _ in 0..20 {
                client.send(request.as_bytes()).await;
                let answer = client.response().await.expect("a response");
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
        });
    }
    asking.join_all().await;
    let seen = upstream.seen();
    assert_eq!(seen.len(), 400);
    for RequestSummary { authority, path, .. } in seen {
        assert_eq!(authority, format!("tenant-{}.example", &path[1..]));
    }
}
