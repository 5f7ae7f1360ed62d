//! Hostile HTTP/2 clients do not affect other clients.

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Request, StatusCode};
use tidegate_testkit::client::http2_streams;
use tidegate_testkit::server::{RecordingServer, Reply, ok};
use tidegate_testkit::wait::{eventually, within};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::fixture::{ResourceLimits, TestGateway, ticking};

/// An HTTP/2 connection with prior knowledge, and the result with which it ended.
async fn connect(gateway: &TestGateway) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    http2_streams(gateway.address).await
}

fn get(path: &str) -> Request<()> {
    Request::get(format!("http://a.example{path}")).body(()).expect("a request")
}

/// The status, and the remaining requests of the limit.
async fn send_get(client: &SendRequest<Bytes>, path: &str) -> Result<(StatusCode, u64), h2::Error> {
    let mut client = within("capacity", client.clone().ready()).await?;
    let (response, _) = client.send_request(get(path), true)?;
    let response = within("a response", response).await?;
    let remaining = response.headers().get("x-ratelimit-remaining").and_then(|value| value.to_str().ok());
    Ok((response.status(), remaining.and_then(|left| left.parse().ok()).unwrap_or_default()))
}

#[tokio::test]
async fn http2_request_is_matched_charged_and_forwarded_like_http1() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 3, ResourceLimits::default());
    let (client, _connection) = connect(&gateway).await;
    assert_eq!(send_get(&client, "//a/../b").await.expect("a response"), (StatusCode::OK, 2));
    let seen = upstream.last();
    assert_eq!((seen.target.as_str(), seen.header("host")), ("/b", Some("a.example")));
    assert_eq!(gateway.get_raw("/").await.remaining(), 1, "the same client over HTTP/1.1");
    assert_eq!(send_get(&client, "/").await.expect("a response"), (StatusCode::OK, 0));
    assert_eq!(send_get(&client, "/").await.expect("a response"), (StatusCode::TOO_MANY_REQUESTS, 0));
}

#[tokio::test]
async fn http2_reset_flood_closes_its_connection_and_no_other() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 1_000_000, ResourceLimits::default());
    let (good, _connection) = connect(&gateway).await;
    let (flood, ended) = connect(&gateway).await;
    let flooding = tokio::spawn(async move {
        for _ in 0..100_000 {
            let Ok(mut client) = flood.clone().ready().await else { return };
            let Ok((_, mut stream)) = client.send_request(get("/flood"), false) else { return };
            stream.send_reset(h2::Reason::CANCEL);
            if fastrand::u8(..16) == 0 {
                tokio::task::yield_now().await;
            }
        }
    });
    let mut responses_meanwhile = 0;
    while !flooding.is_finished() {
        assert_eq!(send_get(&good, "/good").await.expect("a response").0, StatusCode::OK);
        responses_meanwhile += 1;
    }
    assert!(responses_meanwhile > 0);
    let error =
        within("the connection of the flood ends", ended).await.expect("no panic").expect_err("an error");
    // GOAWAY gives the reason, but the flood may notice the closed connection first.
    assert!(error.is_io() || error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM), "{error}");
    assert_eq!(send_get(&good, "/good").await.expect("a response").0, StatusCode::OK);
    eventually("the connection of the flood is closed", || gateway.connections() == 1).await;
}

#[tokio::test]
async fn http2_stream_reset_aborts_the_upstream_request() {
    let hangs = RecordingServer::scripted(|_| Reply::Hang(Vec::new())).await;
    let gateway = TestGateway::with_limit(&[&hangs], 100, ResourceLimits::default());
    let (client, _connection) = connect(&gateway).await;
    let mut ready = client.ready().await.expect("capacity");
    let (_response, mut stream) = ready.send_request(get("/"), true).expect("a stream");
    hangs.until("the request has arrived", |counts| counts.requests == 1).await;
    assert_eq!(hangs.open(), 1);
    stream.send_reset(h2::Reason::CANCEL);
    hangs.until("the upstream connection is closed", |counts| counts.open == 0).await;
}

#[tokio::test]
async fn http2_streams_beyond_the_maximum_wait() {
    let hangs =
        RecordingServer::scripted(|turn| if turn < 4 { Reply::Hang(Vec::new()) } else { ok("ok") }).await;
    let bounds = ResourceLimits {
        streams: 4,
        response_timeout: Duration::from_millis(300),
        ..ResourceLimits::default()
    };
    let gateway = TestGateway::with_limit(&[&hangs], 1_000, bounds);
    let (client, _connection) = connect(&gateway).await;
    // The gateway's settings arrive with the first response.
    let requests: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { send_get(&client, "/").await })
        })
        .collect();
    hangs.until("four requests have arrived", |counts| counts.requests >= 4).await;
    assert_eq!(hangs.requests().len(), 4, "the others wait");
    let mut statuses = Vec::new();
    for response in requests {
        if let Ok((status, _)) = response.await.expect("no panic") {
            statuses.push(status);
        }
    }
    assert!(statuses.contains(&StatusCode::GATEWAY_TIMEOUT), "{statuses:?}");
    assert_eq!(gateway.get_raw("/").await.status, 200);
}

#[tokio::test]
async fn http2_headers_beyond_the_size_limit_are_rejected_and_not_charged() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(
        &[&upstream],
        100,
        ResourceLimits { head_bytes: 8 << 10, ..ResourceLimits::default() },
    );
    let (client, _connection) = connect(&gateway).await;
    assert_eq!(send_get(&client, "/").await.expect("a response").1, 99);
    let mut large = get("/large");
    for n in 0..20 {
        let name = http::HeaderName::try_from(format!("x-{n}")).expect("a name");
        large.headers_mut().insert(name, "a".repeat(1_000).parse().expect("a value"));
    }
    let mut ready = client.clone().ready().await.expect("capacity");
    if let Ok((response, _)) = ready.send_request(large, true) {
        match within("an end", response).await {
            Ok(response) => assert_eq!(response.status(), 431),
            Err(error) => assert!(error.is_reset() || error.is_go_away(), "{error}"),
        }
    }
    assert_eq!(gateway.get_raw("/").await.remaining(), 98);
    assert!(upstream.requests().iter().all(|request| request.target == "/"));
}

#[tokio::test]
async fn http2_client_with_a_zero_window_is_disconnected() {
    let large = vec![b'a'; 1 << 20];
    let response =
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", large.len()).into_bytes(), large].concat();
    let upstream = RecordingServer::scripted(move |_| Reply::Keep(response.clone())).await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ticking(Duration::from_millis(30)));
    let stream = TcpStream::connect(gateway.address).await.expect("a connection");
    let (client, connection) = h2::client::Builder::new()
        .initial_window_size(0)
        .handshake::<_, Bytes>(stream)
        .await
        .expect("HTTP/2");
    let mut connection = connection;
    let mut pings = connection.ping_pong().expect("pings");
    let ended = tokio::spawn(connection);
    // Pings keep the connection active.
    let pinging = tokio::spawn(async move { while pings.ping(h2::Ping::opaque()).await.is_ok() {} });
    let mut ready = client.ready().await.expect("capacity");
    let (response, _) = ready.send_request(get("/"), true).expect("a stream");
    let response = within("a head", response).await.expect("a head");
    assert_eq!(response.status(), StatusCode::OK);
    let _ = within("the connection is closed", ended).await;
    within("the pings end with it", pinging).await.expect("no panic");
}

#[tokio::test]
async fn http2_connection_with_pings_only_is_closed_gracefully() {
    let upstream = RecordingServer::start().await;
    let gateway = TestGateway::with_limit(&[&upstream], 100, ticking(Duration::from_millis(20)));
    // With a request before the pings, and without.
    for sends_request in [true, false] {
        let stream = TcpStream::connect(gateway.address).await.expect("a connection");
        let (client, mut connection) =
            within("a handshake", h2::client::handshake(stream)).await.expect("HTTP/2");
        let mut pings = connection.ping_pong().expect("pings");
        let ended = tokio::spawn(connection);
        if sends_request {
            assert_eq!(send_get(&client, "/").await.expect("a response").0, StatusCode::OK);
        }
        let pinging = tokio::spawn(async move { while pings.ping(h2::Ping::opaque()).await.is_ok() {} });
        let end = within("the connection is closed", ended).await.expect("no panic");
        assert!(end.is_ok(), "without an error: {end:?}");
        within("the pings end with it", pinging).await.expect("no panic");
    }
    eventually("the connections are closed", || gateway.connections() == 0).await;
}
