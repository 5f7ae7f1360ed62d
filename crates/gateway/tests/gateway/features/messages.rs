//! Message bodies are streamed, with their lengths and trailers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt, Empty};
use tidegate_testkit::client::{CollectedResponse, http1};
use tidegate_testkit::server::{AnyBody, HttpServer, full};
use tidegate_testkit::wait::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::fixture::{TestGateway, ticking};

const LIMIT: &str = "rate_limits: { default: { requests: 1000, window: 1h } }\n";

type BodySender = Sender<Bytes, Infallible>;

fn channel() -> (BodySender, Channel<Bytes, Infallible>) {
    Channel::new(1)
}

fn boxed(body: Channel<Bytes, Infallible>) -> AnyBody {
    body.map_err(|never| match never {}).boxed_unsync()
}

/// An upstream that sends each body back, piece by piece.
async fn echo() -> HttpServer {
    HttpServer::start(|request: Request<hyper::body::Incoming>| async move {
        Response::new(request.into_body().boxed_unsync())
    })
    .await
}

#[tokio::test]
async fn event_stream_delivers_each_event_at_once() {
    let (events, mut streams) = mpsc::unbounded_channel::<BodySender>();
    let upstream = HttpServer::start(move |_| {
        let (sending, body) = channel();
        events.send(sending).unwrap();
        async {
            let response = Response::builder().header("content-type", "text/event-stream");
            response.body(boxed(body)).unwrap()
        }
    })
    .await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let request = Request::get("/events").header("host", "test").body(Empty::<Bytes>::new()).unwrap();
    let mut response = soon(http1(gateway.address).await.send_request(request)).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut sending = soon(streams.recv()).await.unwrap();
    for n in 0..5 {
        let event = Bytes::from(format!("data: {n}\n\n"));
        sending.send_data(event.clone()).await.unwrap();
        // The next event is sent only after this one has arrived.
        let frame = soon(response.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
    drop(sending);
    assert!(soon(response.frame()).await.is_none());
}

#[tokio::test]
async fn request_and_response_bodies_stream_at_the_same_time() {
    let upstream = echo().await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let (mut sending, body) = channel();
    let request = Request::post("/").header("host", "test").body(body).unwrap();
    let mut sender = http1(gateway.address).await;
    let mut response = soon(sender.send_request(request)).await.unwrap();
    for n in 0..5 {
        let piece = Bytes::from(format!("piece {n}"));
        sending.send_data(piece.clone()).await.unwrap();
        let frame = soon(response.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), piece);
    }
    drop(sending);
    assert!(soon(response.frame()).await.is_none());
}

#[tokio::test]
async fn long_exchange_does_not_time_out_as_idle_or_slow() {
    let upstream = echo().await;
    // A slow head times out after three ticks, an idle connection after fifteen.
    let bounds = ticking(Duration::from_millis(5));
    let gateway = TestGateway::with(&[upstream.url()], LIMIT, &[], bounds);
    let (mut sending, body) = channel();
    let request = Request::post("/").header("host", "test").body(body).unwrap();
    let mut sender = http1(gateway.address).await;
    let mut response = soon(sender.send_request(request)).await.unwrap();
    let mut pieces = tokio::time::interval(Duration::from_millis(20));
    for n in 0..10 {
        pieces.tick().await;
        let piece = Bytes::from(format!("piece {n}"));
        sending.send_data(piece.clone()).await.unwrap();
        let frame = soon(response.frame()).await.unwrap().expect("the exchange continues");
        assert_eq!(frame.into_data().unwrap(), piece);
    }
    // Nothing moves for many ticks. Only the minimum rate of the upstream applies.
    for _ in 0..10 {
        pieces.tick().await;
    }
    sending.send_data(Bytes::from_static(b"last")).await.unwrap();
    let frame = soon(response.frame()).await.unwrap().expect("the exchange continues");
    assert_eq!(frame.into_data().unwrap(), "last");
}

#[tokio::test]
async fn trailers_are_forwarded_both_ways() {
    let upstream = HttpServer::start(|request: Request<hyper::body::Incoming>| async move {
        let collected = request.into_body().collect().await.unwrap();
        let checksum = collected.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
        let (mut sending, body) = channel();
        tokio::spawn(async move {
            sending.send_data(Bytes::from_static(b"body")).await.unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-came", checksum.unwrap_or(http::HeaderValue::from_static("nothing")));
            sending.send_trailers(trailers).await.unwrap();
        });
        Response::builder().header("trailer", "x-came").body(boxed(body)).unwrap()
    })
    .await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let (mut sending, body) = channel();
    let request = Request::post("/").header("host", "test").header("te", "trailers");
    let request = request.header("trailer", "x-sum").body(body).unwrap();
    tokio::spawn(async move {
        sending.send_data(Bytes::from_static(b"question")).await.unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", http::HeaderValue::from_static("42"));
        sending.send(Frame::trailers(trailers)).await.unwrap();
    });
    let response = gateway.send(request).await;
    assert_eq!(response.text(), "body");
    assert_eq!(response.trailers.unwrap()["x-came"], "42");
}

#[tokio::test]
async fn head_response_keeps_its_content_length_and_its_connection_is_reused() {
    let upstream = HttpServer::named("seventeen letters").await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let mut sender = http1(gateway.address).await;
    for _ in 0..3 {
        let request = Request::head("/").header("host", "test").body(Empty::<Bytes>::new()).unwrap();
        let response = CollectedResponse::of(soon(sender.send_request(request)).await.unwrap()).await;
        assert_eq!((response.status.as_u16(), response.text()), (200, ""));
        assert_eq!(response.number("content-length"), 17);
        assert!(response.header("x-ratelimit-remaining").is_some());
        soon(sender.ready()).await.unwrap();
    }
}

#[tokio::test]
async fn expect_continue_gets_100_before_the_body_is_sent() {
    // The upstream responds after the body, so the 100 is sent first.
    let upstream = HttpServer::start(|request: Request<hyper::body::Incoming>| async move {
        Response::new(full(request.into_body().collect().await.unwrap().to_bytes()))
    })
    .await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let mut stream = send_expect_continue(gateway.address).await;
    assert!(read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 100 Continue\r\n"));
    stream.write_all(b"hello").await.unwrap();
    let response = read_until(&mut stream, "hello").await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
}

#[tokio::test]
async fn expect_continue_over_the_limit_gets_429_before_the_body_is_sent() {
    let upstream = HttpServer::start(|_| async { Response::new(full("served")) }).await;
    let policy = "rate_limits: { default: { requests: 1, window: 1h, algorithm: sliding_window_log } }\n";
    let gateway = TestGateway::before(&[upstream.url()], policy);
    gateway.get("/").await;
    let mut stream = send_expect_continue(gateway.address).await;
    let response = read_until(&mut stream, "\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{response}");
}

async fn send_expect_continue(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    while !text.contains(end) {
        let mut buffer = [0; 4_096];
        let count = soon(stream.read(&mut buffer)).await.unwrap();
        assert_ne!(count, 0, "the connection closed after {text:?}");
        text.push_str(str::from_utf8(&buffer[..count]).unwrap());
    }
    text
}
