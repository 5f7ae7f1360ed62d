//! Bodies pass as they come, with all that belongs to them.

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

type Sending = Sender<Bytes, Infallible>;

fn channel() -> (Sending, Channel<Bytes, Infallible>) {
    Channel::new(1)
}

fn boxed(body: Channel<Bytes, Infallible>) -> AnyBody {
    body.map_err(|never| match never {}).boxed_unsync()
}

/// Whatever comes goes back, piece by piece.
async fn echo() -> HttpServer {
    HttpServer::start(|request: Request<hyper::body::Incoming>| async move {
        Response::new(request.into_body().boxed_unsync())
    })
    .await
}

#[tokio::test]
async fn events_arrive_one_by_one_while_the_stream_is_open() {
    let (events, mut streams) = mpsc::unbounded_channel::<Sending>();
    let upstream = HttpServer::start(move |_| {
        let (sending, body) = channel();
        events.send(sending).unwrap();
        async {
            let response = Response::builder().header("content-type", "text/event-stream");
            response.body(boxed(body)).unwrap()
        }
    })
    .await;
    let proxy = TestGateway::before(&[upstream.url()], LIMIT);
    let request = Request::get("/events").header("host", "test").body(Empty::<Bytes>::new()).unwrap();
    let mut response = soon(http1(proxy.address).await.send_request(request)).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut sending = soon(streams.recv()).await.unwrap();
    for n in 0..5 {
        let event = Bytes::from(format!("data: {n}\n\n"));
        sending.send_data(event.clone()).await.unwrap();
        // The next is sent only when this one has come.
        let frame = soon(response.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
    drop(sending);
    assert!(soon(response.frame()).await.is_none());
}

#[tokio::test]
async fn a_body_goes_back_while_it_still_comes() {
    let upstream = echo().await;
    let proxy = TestGateway::before(&[upstream.url()], LIMIT);
    let (mut sending, body) = channel();
    let request = Request::post("/").header("host", "test").body(body).unwrap();
    let mut sender = http1(proxy.address).await;
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
async fn a_long_exchange_is_not_taken_for_an_idle_or_slow_client() {
    let upstream = echo().await;
    // Three looks end a head that drips, fifteen an idle connection.
    let bounds = ticking(Duration::from_millis(5));
    let proxy = TestGateway::with(&[upstream.url()], LIMIT, &[], bounds);
    let (mut sending, body) = channel();
    let request = Request::post("/").header("host", "test").body(body).unwrap();
    let mut sender = http1(proxy.address).await;
    let mut response = soon(sender.send_request(request)).await.unwrap();
    let mut pieces = tokio::time::interval(Duration::from_millis(20));
    for n in 0..10 {
        pieces.tick().await;
        let piece = Bytes::from(format!("piece {n}"));
        sending.send_data(piece.clone()).await.unwrap();
        let frame = soon(response.frame()).await.unwrap().expect("the exchange goes on");
        assert_eq!(frame.into_data().unwrap(), piece);
    }
    // Nothing moves for many looks: the upstream may think, its own pace bounds it.
    for _ in 0..10 {
        pieces.tick().await;
    }
    sending.send_data(Bytes::from_static(b"last")).await.unwrap();
    let frame = soon(response.frame()).await.unwrap().expect("the exchange goes on");
    assert_eq!(frame.into_data().unwrap(), "last");
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let upstream = HttpServer::start(|request: Request<hyper::body::Incoming>| async move {
        let collected = request.into_body().collect().await.unwrap();
        let came = collected.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
        let (mut sending, body) = channel();
        tokio::spawn(async move {
            sending.send_data(Bytes::from_static(b"body")).await.unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-came", came.unwrap_or(http::HeaderValue::from_static("nothing")));
            sending.send_trailers(trailers).await.unwrap();
        });
        Response::builder().header("trailer", "x-came").body(boxed(body)).unwrap()
    })
    .await;
    let proxy = TestGateway::before(&[upstream.url()], LIMIT);
    let (mut sending, body) = channel();
    let request = Request::post("/").header("host", "test").header("te", "trailers");
    let request = request.header("trailer", "x-sum").body(body).unwrap();
    tokio::spawn(async move {
        sending.send_data(Bytes::from_static(b"question")).await.unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", http::HeaderValue::from_static("42"));
        sending.send(Frame::trailers(trailers)).await.unwrap();
    });
    let answer = proxy.send(request).await;
    assert_eq!(answer.text(), "body");
    assert_eq!(answer.trailers.unwrap()["x-came"], "42");
}

#[tokio::test]
async fn head_has_the_length_and_no_body_and_its_connection_is_used_again() {
    let upstream = HttpServer::named("seventeen letters").await;
    let proxy = TestGateway::before(&[upstream.url()], LIMIT);
    let mut sender = http1(proxy.address).await;
    for _ in 0..3 {
        let request = Request::head("/").header("host", "test").body(Empty::<Bytes>::new()).unwrap();
        let answer = CollectedResponse::of(soon(sender.send_request(request)).await.unwrap()).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, ""));
        assert_eq!(answer.number("content-length"), 17);
        assert!(answer.header("x-ratelimit-remaining").is_some());
        soon(sender.ready()).await.unwrap();
    }
}

#[tokio::test]
async fn whoever_expects_a_100_gets_it_before_sending_the_body() {
    // It answers when it has the body, so the 100 comes alone.
    let upstream = HttpServer::start(|request: Request<hyper::body::Incoming>| async move {
        Response::new(full(request.into_body().collect().await.unwrap().to_bytes()))
    })
    .await;
    let proxy = TestGateway::before(&[upstream.url()], LIMIT);
    let mut stream = expecting(proxy.address).await;
    assert!(until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 100 Continue\r\n"));
    stream.write_all(b"hello").await.unwrap();
    let answer = until(&mut stream, "hello").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn whoever_expects_a_100_and_is_refused_need_not_send_the_body() {
    let upstream = HttpServer::start(|_| async { Response::new(full("served")) }).await;
    let policy = "rate_limits: { default: { requests: 1, window: 1h, algorithm: sliding_window_log } }\n";
    let proxy = TestGateway::before(&[upstream.url()], policy);
    proxy.get("/").await;
    let mut stream = expecting(proxy.address).await;
    let answer = until(&mut stream, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{answer}");
}

async fn expecting(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    while !text.contains(end) {
        let mut buffer = [0; 4_096];
        let count = soon(stream.read(&mut buffer)).await.unwrap();
        assert_ne!(count, 0, "it ended after {text:?}");
        text.push_str(str::from_utf8(&buffer[..count]).unwrap());
    }
    text
}
