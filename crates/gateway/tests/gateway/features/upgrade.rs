//! Upgrades: connections that switch to another protocol.

use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tidegate_testkit::server::{AnyBody, HttpServer, full};
use tidegate_testkit::wait::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::TcpStream;

use crate::fixture::{ResourceLimits, TestGateway};

const LIMIT: &str = "rate_limits: { default: { requests: 2, window: 1h, algorithm: sliding_window_log } }\n";

const HANDSHAKE: &str = "GET /chat HTTP/1.1\r\nHost: test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Accepts any upgrade, then sends all bytes back.
async fn accept_upgrade(mut request: Request<Incoming>) -> Response<AnyBody> {
    let Some(protocol) = request.headers().get("upgrade").cloned() else {
        return Response::new(full("no upgrade was requested"));
    };
    assert_eq!(request.headers()["connection"], "upgrade");
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (mut read, mut write) = split(TokioIo::new(upgrade.await.unwrap()));
        // How the connection ends does not matter here.
        let _ = copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    });
    let response =
        Response::builder().status(101).header("connection", "upgrade").header("upgrade", protocol);
    response.header("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=").body(full("")).unwrap()
}

async fn send(gateway: &TestGateway, text: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    (stream, String::from_utf8(head).unwrap().to_ascii_lowercase())
}

/// A masked text frame, as clients send them.
fn frame(text: &str) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap()];
    frame.extend(mask);
    frame.extend(text.bytes().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

#[tokio::test]
async fn websocket_upgrade_forwards_bytes_both_ways() {
    let upstream = HttpServer::start(accept_upgrade).await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let (mut stream, head) = send(&gateway, HANDSHAKE).await;
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains("upgrade: websocket\r\n"), "{head}");
    assert!(head.contains("connection: upgrade\r\n"), "{head}");
    assert!(head.contains("sec-websocket-accept: "), "{head}");
    assert!(head.contains("x-ratelimit-remaining: 1\r\n"), "{head}");
    for text in ["hello", "how are you", "bye"] {
        stream.write_all(&frame(text)).await.unwrap();
        let mut echoed = vec![0; frame(text).len()];
        soon(stream.read_exact(&mut echoed)).await.unwrap();
        assert_eq!(echoed, frame(text));
    }
    stream.shutdown().await.unwrap();
    assert_eq!(
        soon(stream.read(&mut [0; 1])).await.unwrap(),
        0,
        "the connection ends once both sides have ended"
    );
}

#[tokio::test]
async fn upgrade_request_over_the_limit_gets_429() {
    let upstream = HttpServer::start(accept_upgrade).await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let (_first, _second) = (send(&gateway, HANDSHAKE).await, send(&gateway, HANDSHAKE).await);
    let (_, head) = send(&gateway, HANDSHAKE).await;
    assert!(head.starts_with("http/1.1 429 "), "{head}");
}

#[tokio::test]
async fn upgrade_request_without_a_101_response_stays_http() {
    let upstream = HttpServer::start(|request: Request<Incoming>| async move {
        let path = request.uri().path().to_owned();
        Response::new(full(path))
    })
    .await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let second = "GET /second HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let (mut stream, head) = send(&gateway, &format!("{HANDSHAKE}{second}")).await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    let mut rest = String::new();
    soon(stream.read_to_string(&mut rest)).await.unwrap();
    // The bytes that follow are a request of their own, and charged as one.
    assert!(rest.starts_with("/chatHTTP/1.1 200 OK\r\n"), "{rest}");
    assert!(rest.contains("x-ratelimit-remaining: 0\r\n") && rest.ends_with("/second"), "{rest}");
}

#[tokio::test]
async fn upstream_101_without_an_upgrade_request_gives_502() {
    let upstream = HttpServer::start(|_| async {
        let response = Response::builder().status(101).header("connection", "upgrade");
        response.header("upgrade", "websocket").body(full("")).unwrap()
    })
    .await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    let response = gateway.get("/").await;
    assert_eq!(response.status, 502);
}

#[tokio::test]
async fn upgrade_to_http2_is_not_forwarded() {
    let upstream = HttpServer::start(accept_upgrade).await;
    let gateway = TestGateway::before(&[upstream.url()], LIMIT);
    for protocol in ["h2c", "websocket, H2C"] {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\n\
             HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"
        );
        let (_, head) = send(&gateway, &request).await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
    }
}

#[tokio::test]
async fn upgraded_connection_counts_as_a_connection_of_its_client() {
    let upstream = HttpServer::start(accept_upgrade).await;
    let bounds = ResourceLimits { connections_per_address: 1, ..ResourceLimits::default() };
    let gateway = TestGateway::with(&[upstream.url()], LIMIT, &[], bounds);
    let (mut upgraded, head) = send(&gateway, HANDSHAKE).await;
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    let mut rejected = TcpStream::connect(gateway.address).await.unwrap();
    let read = tokio::time::timeout(Duration::from_secs(20), rejected.read(&mut [0; 1])).await.unwrap();
    assert!(!read.is_ok_and(|count| count > 0), "the connection is closed at once");
    upgraded.write_all(b"still open").await.unwrap();
    soon(upgraded.read_exact(&mut [0; 10])).await.unwrap();
}
