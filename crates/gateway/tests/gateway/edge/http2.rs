//! HTTP/2 clients that mean harm: others are served all along.

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

/// A connection that speaks HTTP/2 from the first byte, and why it ended.
async fn connect(served: &TestGateway) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    http2_streams(served.address).await
}

fn get(path: &str) -> Request<()> {
    Request::get(format!("http://a.example{path}")).body(()).expect("a request")
}

/// The status and what is left of the limit.
async fn ask(client: &SendRequest<Bytes>, path: &str) -> Result<(StatusCode, u64), h2::Error> {
    let mut client = within("room", client.clone().ready()).await?;
    let (response, _) = client.send_request(get(path), true)?;
    let response = within("an answer", response).await?;
    let remaining = response.headers().get("x-ratelimit-remaining").and_then(|value| value.to_str().ok());
    Ok((response.status(), remaining.and_then(|left| left.parse().ok()).unwrap_or_default()))
}

#[tokio::test]
async fn requests_over_http2_are_matched_charged_and_forwarded_like_any() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 3, ResourceLimits::default());
    let (client, _connection) = connect(&served).await;
    assert_eq!(ask(&client, "//a/../b").await.expect("an answer"), (StatusCode::OK, 2));
    let seen = upstream.last();
    assert_eq!((seen.target.as_str(), seen.header("host")), ("/b", Some("a.example")));
    assert_eq!(served.get_raw("/").await.remaining(), 1, "the same client over HTTP/1.1");
    assert_eq!(ask(&client, "/").await.expect("an answer"), (StatusCode::OK, 0));
    assert_eq!(ask(&client, "/").await.expect("an answer"), (StatusCode::TOO_MANY_REQUESTS, 0));
}

#[tokio::test]
async fn a_flood_of_resets_ends_its_connection_and_no_other() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 1_000_000, ResourceLimits::default());
    let (good, _connection) = connect(&served).await;
    let (flood, ended) = connect(&served).await;
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
    let mut served_meanwhile = 0;
    while !flooding.is_finished() {
        assert_eq!(ask(&good, "/good").await.expect("an answer").0, StatusCode::OK);
        served_meanwhile += 1;
    }
    assert!(served_meanwhile > 0);
    let error = within("the flood is ended", ended).await.expect("no panic").expect_err("not in peace");
    // Why is told before the connection closes, but a flood may run into the closed one first.
    assert!(error.is_io() || error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM), "{error}");
    assert_eq!(ask(&good, "/good").await.expect("an answer").0, StatusCode::OK);
    eventually("the flood has left", || served.connections() == 1).await;
}

#[tokio::test]
async fn a_reset_request_is_forwarded_no_further() {
    let hangs = RecordingServer::scripted(|_| Reply::Hang(Vec::new())).await;
    let served = TestGateway::with_limit(&[&hangs], 100, ResourceLimits::default());
    let (client, _connection) = connect(&served).await;
    let mut ready = client.ready().await.expect("room");
    let (_response, mut stream) = ready.send_request(get("/"), true).expect("a stream");
    hangs.until("it has come", |counts| counts.requests == 1).await;
    assert_eq!(hangs.open(), 1);
    stream.send_reset(h2::Reason::CANCEL);
    hangs.until("the upstream is let go", |counts| counts.open == 0).await;
}

#[tokio::test]
async fn only_so_many_streams_are_open_at_once() {
    let hangs =
        RecordingServer::scripted(|turn| if turn < 4 { Reply::Hang(Vec::new()) } else { ok("ok") }).await;
    let bounds = ResourceLimits {
        streams: 4,
        response_timeout: Duration::from_millis(300),
        ..ResourceLimits::default()
    };
    let served = TestGateway::with_limit(&[&hangs], 1_000, bounds);
    let (client, _connection) = connect(&served).await;
    // The first answer brings the gateway's settings with it.
    let asking: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { ask(&client, "/").await })
        })
        .collect();
    hangs.until("some have come", |counts| counts.requests >= 4).await;
    assert_eq!(hangs.requests().len(), 4, "the others wait");
    let mut statuses = Vec::new();
    for answer in asking {
        if let Ok((status, _)) = answer.await.expect("no panic") {
            statuses.push(status);
        }
    }
    assert!(statuses.contains(&StatusCode::GATEWAY_TIMEOUT), "{statuses:?}");
    assert_eq!(served.get_raw("/").await.status, 200);
}

#[tokio::test]
async fn headers_beyond_their_bound_are_refused_and_cost_nothing() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(
        &[&upstream],
        100,
        ResourceLimits { head_bytes: 8 << 10, ..ResourceLimits::default() },
    );
    let (client, _connection) = connect(&served).await;
    assert_eq!(ask(&client, "/").await.expect("an answer").1, 99);
    let mut large = get("/large");
    for n in 0..20 {
        let name = http::HeaderName::try_from(format!("x-{n}")).expect("a name");
        large.headers_mut().insert(name, "a".repeat(1_000).parse().expect("a value"));
    }
    let mut ready = client.clone().ready().await.expect("room");
    if let Ok((response, _)) = ready.send_request(large, true) {
        match within("an end", response).await {
            Ok(response) => assert_eq!(response.status(), 431),
            Err(error) => assert!(error.is_reset() || error.is_go_away(), "{error}"),
        }
    }
    assert_eq!(served.get_raw("/").await.remaining(), 98);
    assert!(upstream.requests().iter().all(|request| request.target == "/"));
}

#[tokio::test]
async fn a_client_that_opens_no_window_is_ended() {
    let large = vec![b'a'; 1 << 20];
    let answer =
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", large.len()).into_bytes(), large].concat();
    let upstream = RecordingServer::scripted(move |_| Reply::Keep(answer.clone())).await;
    let served = TestGateway::with_limit(&[&upstream], 100, ticking(Duration::from_millis(30)));
    let stream = TcpStream::connect(served.address).await.expect("a connection");
    let (client, connection) = h2::client::Builder::new()
        .initial_window_size(0)
        .handshake::<_, Bytes>(stream)
        .await
        .expect("HTTP/2");
    let mut connection = connection;
    let mut pings = connection.ping_pong().expect("pings");
    let ended = tokio::spawn(connection);
    // It looks as lively as can be.
    let pinging = tokio::spawn(async move { while pings.ping(h2::Ping::opaque()).await.is_ok() {} });
    let mut ready = client.ready().await.expect("room");
    let (response, _) = ready.send_request(get("/"), true).expect("a stream");
    let response = within("a head", response).await.expect("a head");
    assert_eq!(response.status(), StatusCode::OK);
    let _ = within("the connection is ended", ended).await;
    within("the pings end with it", pinging).await.expect("no panic");
}

#[tokio::test]
async fn a_connection_that_only_pings_is_told_to_go_and_then_ended() {
    let upstream = RecordingServer::start().await;
    let served = TestGateway::with_limit(&[&upstream], 100, ticking(Duration::from_millis(20)));
    // With a request before it, and without any.
    for asks in [true, false] {
        let stream = TcpStream::connect(served.address).await.expect("a connection");
        let (client, mut connection) =
            within("a handshake", h2::client::handshake(stream)).await.expect("HTTP/2");
        let mut pings = connection.ping_pong().expect("pings");
        let ended = tokio::spawn(connection);
        if asks {
            assert_eq!(ask(&client, "/").await.expect("an answer").0, StatusCode::OK);
        }
        let pinging = tokio::spawn(async move { while pings.ping(h2::Ping::opaque()).await.is_ok() {} });
        let end = within("the connection is ended", ended).await.expect("no panic");
        assert!(end.is_ok(), "in peace: {end:?}");
        within("the pings end with it", pinging).await.expect("no panic");
    }
    eventually("they are gone", || served.connections() == 0).await;
}
