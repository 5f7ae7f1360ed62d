//! HTTP/2 connections that requests of several clients share: what one request does to its connection does not affect the others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{Request, Response, StatusCode};
use tidegate_core::BreakerState;
use tidegate_testkit::client::{HEADERS, RawClient, http2_streams};
use tidegate_testkit::process::Nginx;
use tidegate_testkit::server::{AcceptLoop, HttpServer, RecordingServer, Reply, full};
use tidegate_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use super::retries::FrameStream;
use crate::fixture::{ResourceLimits, TestGateway};

/// Requests that are not affected by others.
const VICTIMS: usize = 12;

const POST: &str = "POST /victim HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";

/// What was transferred has not changed for this many requests: nothing more is going to be.
const QUIET: usize = 20;

pub(super) fn gateway(url: &str, settings: &str) -> TestGateway {
    let policy = format!(
        "upstreams: {{ app: {{ servers: [\"{url}\"], {settings} }} }}\nroutes: [{{ upstream: app }}]\n\
         rate_limits: {{ default: {{ requests: 100000, window: 1h }} }}\n"
    );
    TestGateway::start(&policy, ResourceLimits::default())
}

pub(super) fn assert_breaker_closed(gateway: &TestGateway) {
    let status = gateway.upstream();
    let breaker = status.servers[0].breaker.expect("a breaker");
    assert_eq!((breaker.state, breaker.opened), (BreakerState::Closed, 0));
}

/// A GET with a header of this length.
fn with_header(path: &str, length: usize) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Large: {}\r\n\r\n", "a".repeat(length))
}

/// An HTTP/2 server that accepts heads up to 256 KiB and many streams.
struct Http2Server {
    accepting: AcceptLoop,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Http2Server {
    /// `handle` is called with each request and its response.
    async fn start(
        handle: impl Fn(Request<RecvStream>, h2::server::SendResponse<Bytes>) + Clone + Send + 'static,
    ) -> Self {
        let (connections, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = (Arc::clone(&connections), Arc::clone(&requests));
        let accepting = AcceptLoop::start(move |_, stream| {
            let ((connections, requests), handle) = (counted.clone(), handle.clone());
            connections.fetch_add(1, Ordering::SeqCst);
            async move {
                let mut builder = h2::server::Builder::new();
                let builder = builder.max_header_list_size(256 << 10).max_concurrent_streams(1_000);
                let handshake = builder.handshake(stream);
                let mut connection = handshake.await.expect("HTTP/2");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    requests.fetch_add(1, Ordering::SeqCst);
                    handle(request, respond);
                }
            }
        })
        .await;
        Self { accepting, connections, requests }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Sends the body for as long as there is room, and counts what was sent.
async fn send_all(stream: SendStream<Bytes>, left: usize, sent: Arc<AtomicUsize>) {
    send_frames(stream, left, 16 << 10, sent).await;
}

/// The same in frames of at most this length.
async fn send_frames(mut stream: SendStream<Bytes>, mut left: usize, most: usize, sent: Arc<AtomicUsize>) {
    while left > 0 {
        stream.reserve_capacity(left.min(most));
        let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let Some(Ok(capacity)) = capacity else { return };
        let length = capacity.min(left).min(most);
        left -= length;
        if stream.send_data(Bytes::from(vec![b'a'; length]), left == 0).is_err() {
            return;
        }
        sent.fetch_add(length, Ordering::SeqCst);
    }
}

/// Sends requests until `transferred` does not change any more, so that whatever is to stall has stalled.
async fn serves_until_quiet<F: Future>(transferred: &AtomicUsize, mut request: impl FnMut() -> F) {
    let (mut seen, mut quiet) = (0, 0);
    while quiet < QUIET {
        within("another request is served", request()).await;
        let now = transferred.load(Ordering::SeqCst);
        quiet = if now == seen { quiet + 1 } else { 0 };
        seen = now;
    }
}

/// Asserts that clients which read nothing of responses in frames of this length do not affect other requests.
async fn assert_slow_readers_harm_nobody(frame: usize, readers: usize) {
    const LARGE: usize = 26 << 20;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let upstream = Http2Server::start(move |request, mut respond| {
        let is_large = request.uri().path() == "/large";
        let stream = respond.send_response(Response::new(()), false).expect("a stream");
        let counted = if is_large { Arc::clone(&counted) } else { Arc::default() };
        tokio::spawn(send_frames(stream, if is_large { LARGE } else { 4 << 10 }, frame, counted));
    })
    .await;
    let gateway = gateway(&upstream.accepting.h2c(), "");
    assert_eq!(gateway.get_raw("/").await.status, 200);
    let mut stalled = Vec::new();
    for _ in 0..readers {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4 << 10).expect("a small buffer");
        let mut stream = within("connecting", socket.connect(gateway.address)).await.expect("a connection");
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("a request");
        assert!(within("a response", stream.read(&mut [0; 160])).await.expect("a response") > 0);
        stalled.push(stream);
    }
    serves_until_quiet(&sent, || async {
        assert_eq!(gateway.get_raw("/small").await.status, 200);
    })
    .await;
    assert_eq!(upstream.connections(), 1, "they share a connection, which is not closed");
}

#[tokio::test]
async fn http2_upstream_slow_readers_do_not_stall_other_requests() {
    assert_slow_readers_harm_nobody(16 << 10, 12).await;
}

#[tokio::test]
async fn http2_upstream_slow_readers_of_small_frames_do_not_close_the_connection() {
    assert_slow_readers_harm_nobody(16, 12).await;
}

#[tokio::test]
async fn http2_upstream_connection_has_a_bounded_number_of_streams() {
    const MOST: usize = 128;
    let hanging = Arc::new(Mutex::new(Vec::new()));
    let upstream = Http2Server::start(move |request, mut respond| {
        if request.uri().path() == "/hang" {
            hanging.lock().expect("no panic").push(respond);
        } else {
            respond.send_response(Response::new(()), true).expect("a stream");
        }
    })
    .await;
    let gateway = gateway(&upstream.accepting.h2c(), "");
    // The gateway learns how many streams the server allows with the first responses.
    for _ in 0..2 {
        assert_eq!(gateway.get_raw("/").await.status, 200);
    }
    let (client, _connection) = http2_streams(gateway.address).await;
    let (other, _other_connection) = http2_streams(gateway.address).await;
    let mut pending = Vec::new();
    for index in 0..MOST {
        let client = if index % 2 == 0 { &client } else { &other };
        let mut client = within("capacity", client.clone().ready()).await.expect("an open connection");
        let request = Request::get("http://a/hang").body(()).expect("a request");
        pending.push(client.send_request(request, true).expect("a stream"));
    }
    eventually("all have arrived", || upstream.requests() == 2 + MOST).await;
    assert_eq!(upstream.connections(), 1);
    assert_eq!(within("a response", gateway.get_raw("/")).await.status, 200);
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn http2_upstream_burst_shares_the_connections_that_are_being_opened() {
    const BURST: usize = 250;
    let upstream = Http2Server::start(|_, mut respond| {
        respond.send_response(Response::new(()), true).expect("a stream");
    })
    .await;
    let gateway = gateway(&upstream.accepting.h2c(), "");
    let mut clients = Vec::new();
    for _ in 0..BURST {
        clients.push(gateway.client().await);
    }
    for client in &mut clients {
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    }
    for mut client in clients {
        assert_eq!(client.response().await.map(|response| response.status), Some(200));
    }
    // Four are enough. If the gateway gets little time, some requests need others.
    assert!(upstream.connections() <= BURST / 2, "{} connections", upstream.connections());
}

#[tokio::test]
async fn http2_upload_that_stalls_does_not_stall_others_of_its_connection() {
    let upstream = HttpServer::start(|request: Request<hyper::body::Incoming>| async move {
        if request.uri().path() == "/stalled" {
            std::future::pending::<()>().await;
        }
        let body = http_body_util::BodyExt::collect(request.into_body()).await;
        Response::new(full(body.map(http_body_util::Collected::to_bytes).unwrap_or_default()))
    })
    .await;
    let gateway = gateway(&upstream.url(), "");
    let (client, _connection) = http2_streams(gateway.address).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let mut stalled = Vec::new();
    for _ in 0..40 {
        let (response, stream) = post(&client, "/stalled").await;
        stalled.push((response, tokio::spawn(send_all(stream, 1 << 30, Arc::clone(&sent)))));
    }
    serves_until_quiet(&sent, || async {
        let (response, stream) = post(&client, "/read").await;
        send_all(stream, 64 << 10, Arc::default()).await;
        assert_eq!(response.await.expect("a response").status(), StatusCode::OK);
    })
    .await;
    for (_, task) in stalled {
        task.abort();
    }
}

async fn post(client: &SendRequest<Bytes>, path: &str) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
    let mut client = within("capacity", client.clone().ready()).await.expect("an open connection");
    let request = Request::post(format!("http://a{path}")).body(()).expect("a request");
    client.send_request(request, false).expect("a stream")
}

const NGINX: &str =
    "daemon off; master_process off; pid FOLDER/nginx.pid; error_log FOLDER/error.log; events {}
    http {
        access_log off;
        client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy; fastcgi_temp_path FOLDER/fastcgi;
        scgi_temp_path FOLDER/scgi; uwsgi_temp_path FOLDER/uwsgi;
        server { listen ADDRESS http2; location / { proxy_pass http://UPSTREAM; } }
    }";

/// Asserts that requests in progress at an nginx survive others that it answers with the end of the connection.
async fn assert_nginx_fails_no_other_request(attack: &str) {
    let (release, released) = tokio::sync::watch::channel(false);
    let held = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&held);
    let service = HttpServer::start(move |request: Request<hyper::body::Incoming>| {
        let (mut released, counted) = (released.clone(), Arc::clone(&counted));
        async move {
            if request.uri().path() == "/victim" {
                counted.fetch_add(1, Ordering::SeqCst);
                released.wait_for(|released| *released).await.expect("a sender");
            }
            Response::new(full("ok"))
        }
    })
    .await;
    let nginx = Nginx::start(NGINX, service.address);
    let gateway = gateway(&format!("h2c://{}", nginx.address), "breaker: { failures: 5 }");
    assert_eq!(gateway.get_raw("/").await.status, 200);
    let mut victims = JoinSet::new();
    for _ in 0..VICTIMS {
        let address = gateway.address;
        victims.spawn(async move {
            let mut client = RawClient::connect(address).await;
            client.send(POST.as_bytes()).await;
            client.response().await.map(|response| response.status)
        });
    }
    eventually("all are in progress", || held.load(Ordering::SeqCst) == VICTIMS).await;
    for _ in 0..VICTIMS {
        gateway.send_raw(attack).await;
    }
    assert_breaker_closed(&gateway);
    release.send_replace(true);
    assert_eq!(within("responses", victims.join_all()).await, [Some(200); VICTIMS]);
}

#[tokio::test]
async fn http2_nginx_that_closes_because_of_a_large_head_fails_no_other_request() {
    assert_nginx_fails_no_other_request(&with_header("/", 40 << 10)).await;
}

#[tokio::test]
async fn http2_nginx_that_closes_because_of_a_field_with_long_codes_fails_no_other_request() {
    // A backslash has 19 bits in the Huffman code of HPACK, and nginx limits the coded length.
    let field = "\\".repeat(4_000);
    assert_nginx_fails_no_other_request(&format!("GET / HTTP/1.1\r\nHost: a\r\nX-A: {field}\r\n\r\n")).await;
}

#[tokio::test]
async fn http2_nginx_that_closes_because_of_trailers_fails_no_other_request() {
    let chunks = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n";
    for announced in ["", "Trailer: X-Sum\r\n"] {
        let attack = format!("POST / HTTP/1.1\r\nHost: a\r\n{announced}{chunks}");
        assert_nginx_fails_no_other_request(&attack).await;
    }
}

#[tokio::test]
async fn http2_connection_that_breaks_counts_once_for_all_of_its_requests() {
    let upstream = AcceptLoop::start(|_, stream| async move {
        let mut frames = FrameStream::accept(stream).await;
        frames.respond_to_first().await;
        // Closed without GOAWAY: any of them may have been processed.
        frames.read(HEADERS, VICTIMS).await;
    })
    .await;
    let gateway = gateway(&upstream.h2c(), "breaker: { failures: 2 }, eject: { after: 2 }");
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(gateway.send_raw(get).await.status, 200);
    let mut victims = JoinSet::new();
    for _ in 0..VICTIMS {
        let address = gateway.address;
        victims.spawn(async move {
            let mut client = RawClient::connect(address).await;
            client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await;
            client.response().await.map(|response| response.status)
        });
    }
    assert_eq!(within("responses", victims.join_all()).await, [Some(502); VICTIMS]);
    assert_breaker_closed(&gateway);
    assert_eq!(gateway.send_raw(get).await.status, 200);
}

#[tokio::test]
async fn http2_server_that_closes_because_of_large_heads_is_not_held_responsible() {
    let upstream = AcceptLoop::start(|number, stream| async move {
        let mut frames = FrameStream::accept(stream).await;
        if number == 0 {
            frames.respond_to_first().await;
        }
        frames.read(HEADERS, 1).await;
    })
    .await;
    let gateway = gateway(&upstream.h2c(), "breaker: { failures: 1 }, eject: { after: 1 }");
    assert_eq!(gateway.get_raw("/").await.status, 200);
    for _ in 0..3 {
        assert_eq!(gateway.send_raw(&with_header("/", 9 << 10)).await.status, 502);
    }
    assert_breaker_closed(&gateway);
    assert_eq!(gateway.upstream().retries, 0);
}

#[tokio::test]
async fn http2_server_that_refuses_large_heads_is_not_held_responsible() {
    let upstream = Http2Server::start(|request, mut respond| {
        if request.headers().contains_key("x-large") {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        } else {
            respond.send_response(Response::new(()), true).expect("a stream");
        }
    })
    .await;
    let gateway = gateway(&upstream.accepting.h2c(), "breaker: { failures: 1 }, eject: { after: 1 }");
    assert_eq!(gateway.send_raw(&with_header("/", 9 << 10)).await.status, 502);
    assert_breaker_closed(&gateway);
    assert_eq!(gateway.get_raw("/").await.status, 200);
}

#[tokio::test]
async fn http2_connection_with_many_requests_that_clients_abort_gets_no_more() {
    let waiting = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&waiting);
    let upstream = Http2Server::start(move |request, mut respond| {
        if request.uri().path() == "/" {
            respond.send_response(Response::new(()), true).expect("a stream");
        } else {
            keep.lock().expect("a lock").push(respond);
        }
    })
    .await;
    let gateway = gateway(&upstream.accepting.h2c(), "");
    // More than the gateway resets over one connection.
    for aborted in 1..=70 {
        let mut client = gateway.client().await;
        client.send(b"GET /waits HTTP/1.1\r\nHost: a\r\n\r\n").await;
        eventually("the server has the request", || upstream.requests() == aborted).await;
        drop(client);
        eventually("it is reset", || gateway.upstream().servers[0].in_flight == 0).await;
    }
    assert_eq!(gateway.get_raw("/").await.status, 200);
    assert_eq!(upstream.connections(), 2);
    drop(waiting);
}

#[tokio::test]
async fn http2_requests_of_one_client_that_a_server_refuses_harm_no_other_client() {
    let upstream = Http2Server::start(|request, mut respond| {
        if request.uri().path() == "/refused" {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        } else {
            respond.send_response(Response::new(()), true).expect("a stream");
        }
    })
    .await;
    let gateway = gateway(&upstream.accepting.h2c(), "breaker: { failures: 5 }, eject: { after: 5 }");
    assert_eq!(gateway.get_raw("/").await.status, 200);
    for _ in 0..10 {
        let mut client = gateway.client_from([127, 0, 0, 2]).await;
        client.send(b"GET /refused HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(client.response().await.map(|response| response.status), Some(502));
    }
    assert_breaker_closed(&gateway);
    assert_eq!(gateway.get_raw("/").await.status, 200);
}

#[tokio::test]
async fn http2_large_head_shares_a_connection_once_the_server_has_accepted_one() {
    let upstream = Http2Server::start(|request, mut respond| {
        let status = if request.uri().path() == "/refused" { 431 } else { 200 };
        let response = Response::builder().status(status).body(()).expect("a response");
        respond.send_response(response, true).expect("a stream");
    })
    .await;
    let gateway = gateway(&upstream.accepting.h2c(), "");
    let get = async |path: &str, length: usize| gateway.send_raw(&with_header(path, length)).await.status;
    let mut connections = Vec::new();
    for (path, length) in [
        ("/", 1_000),
        ("/refused", 20_000),
        ("/", 20_000),
        ("/", 20_000),
        ("/", 10_000),
        ("/", 30_000),
        ("/", 30_000),
    ] {
        assert_eq!(get(path, length).await, if path == "/" { 200 } else { 431 });
        connections.push(upstream.connections());
    }
    assert_eq!(connections, [1, 2, 3, 3, 3, 4, 4]);
}

/// Redirects to the target of the request, which `times` headers repeat.
async fn redirecting(times: usize) -> Http2Server {
    Http2Server::start(move |request, mut respond| {
        let target = request.uri().path().to_owned();
        let mut response = Response::builder().status(302).header("location", &target);
        for _ in 1..times {
            response = response.header("link", &target);
        }
        respond.send_response(response.body(()).expect("a response"), true).expect("a stream");
    })
    .await
}

#[tokio::test]
async fn http2_server_that_repeats_a_long_url_is_not_held_responsible() {
    let long = format!("/{}", "a".repeat(40 << 10));
    let once = redirecting(1).await;
    let gateway_of_once = gateway(&once.accepting.h2c(), "breaker: { failures: 1 }");
    let response = gateway_of_once.get_raw(&long).await;
    assert_eq!((response.status, response.header("location")), (302, Some(long.as_str())));
    assert_breaker_closed(&gateway_of_once);
    // More than the limit of a response head.
    let often = redirecting(10).await;
    let gateway = gateway(&often.accepting.h2c(), "breaker: { failures: 1 }, eject: { after: 1 }");
    assert_eq!(gateway.get_raw("/a").await.status, 302);
    for _ in 0..2 {
        assert_eq!(gateway.get_raw(&long).await.status, 502);
    }
    assert_breaker_closed(&gateway);
    assert_eq!(gateway.get_raw("/a").await.status, 302);
}

#[tokio::test]
async fn http1_server_that_repeats_a_long_url_is_not_held_responsible() {
    let upstream = RecordingServer::replying(|request| {
        let line = format!("Link: {}\r\n", request.target);
        let often = if request.target == "/a" { 1 } else { 10 };
        Reply::Keep(format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{}\r\n", line.repeat(often)).into())
    })
    .await;
    let gateway = gateway(&upstream.url(), "breaker: { failures: 1 }, eject: { after: 1 }");
    assert_eq!(gateway.get_raw("/a").await.status, 200);
    let long = format!("/{}", "a".repeat(60 << 10));
    for _ in 0..2 {
        assert_eq!(gateway.get_raw(&long).await.status, 502);
    }
    assert_breaker_closed(&gateway);
    assert_eq!(gateway.get_raw("/a").await.status, 200);
}

#[tokio::test]
async fn http2_trailers_are_forwarded_if_they_are_announced() {
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let upstream = Http2Server::start(move |request, mut respond| {
        let sender = sender.clone();
        tokio::spawn(async move {
            let mut body = request.into_body();
            while body.data().await.is_some() {}
            let trailers = body.trailers().await.expect("an end");
            sender.send(trailers.is_some_and(|trailers| trailers["x-sum"] == "7")).expect("a receiver");
            respond.send_response(Response::new(()), true).expect("a stream");
        });
    })
    .await;
    let gateway = gateway(&upstream.accepting.h2c(), "");
    let chunks = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n";
    for announced in ["Trailer: X-Sum\r\n", ""] {
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{announced}{chunks}");
        assert_eq!(gateway.send_raw(&request).await.status, 200);
        assert_eq!(received.recv().await, Some(!announced.is_empty()));
    }
}
