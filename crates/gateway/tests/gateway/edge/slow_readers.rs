//! Slow readers: the gateway measures how many bytes of each response the client reads.

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use http::Request;
use tidegate_testkit::server::{RecordingServer, Reply};
use tidegate_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep};

use crate::fixture::{ResourceLimits, TestGateway, ticking};

const TICK: Duration = Duration::from_millis(80);
/// The window over which the rate of a reader is measured.
const WINDOW: Duration = TICK.saturating_mul(6);
/// The default minimum of a window.
const MINIMUM: usize = 3_000;
const BODY: usize = 1 << 20;

fn bounds() -> ResourceLimits {
    ResourceLimits { reader_bytes: MINIMUM as u64, ..ticking(TICK) }
}

/// An upstream whose every response has a body of [`BODY`] bytes.
async fn large() -> RecordingServer {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n").into_bytes();
    let response = [head, vec![b'a'; BODY]].concat();
    RecordingServer::scripted(move |_| Reply::Keep(response.clone())).await
}

/// An HTTP/2 client with the default window for each stream, and a connection window for all of them.
async fn connect(gateway: &TestGateway) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(gateway.address).await.expect("a connection");
    let handshake = h2::client::Builder::new().initial_connection_window_size(1 << 28).handshake(stream);
    let (client, connection) = within("a handshake", handshake).await.expect("HTTP/2");
    tokio::spawn(connection);
    client
}

/// A response's body, of which nothing has been read yet.
async fn body(client: &SendRequest<Bytes>) -> RecvStream {
    let mut client = within("capacity", client.clone().ready()).await.expect("the connection is open");
    let request = Request::get("http://a.example/").body(()).expect("a request");
    let (response, _) = client.send_request(request, true).expect("a stream");
    let response = within("a head", response).await.expect("a head");
    assert_eq!(response.status(), 200);
    response.into_body()
}

/// The bytes that a reader of `per_window` bytes in each window has read by now.
fn due(per_window: usize, since: Instant) -> usize {
    let due = per_window as u128 * since.elapsed().as_micros() / WINDOW.as_micros();
    usize::try_from(due).expect("some thousands")
}

/// Reads for `windows` windows and releases `per_window` bytes of capacity in each. The first bytes fill the window of the
/// stream and do not count.
async fn read_slowly(body: &mut RecvStream, per_window: usize, windows: u32) -> Result<usize, h2::Error> {
    let mut control = body.flow_control().clone();
    let (mut received, mut released) = (0, 0);
    #[expect(clippy::disallowed_methods, reason = "the rate of a reader is one of real time")]
    let since = Instant::now();
    while since.elapsed() < WINDOW * windows {
        match tokio::time::timeout(TICK / 8, body.data()).await {
            Ok(Some(data)) => received += data?.len(),
            Ok(None) => return Ok(received),
            Err(_) => {}
        }
        let due = due(per_window, since).min(received);
        if due > released {
            control.release_capacity(due - released)?;
            released = due;
        }
    }
    Ok(received)
}

#[tokio::test]
async fn http2_stalled_streams_are_reset_while_another_stream_continues() {
    const STALLED: usize = 8;
    let upstream = large().await;
    let gateway = TestGateway::with_limit(&[&upstream], 1_000, bounds());
    let client = connect(&gateway).await;
    let mut active = body(&client).await;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        stalled.push(body(&client).await);
    }
    upstream.until("all responses have started", |counts| counts.open == STALLED + 1).await;
    let resets = async {
        let mut resets = Vec::new();
        for mut body in stalled {
            // What was sent before the reset can still be read.
            let error = loop {
                match within("a reset", body.data()).await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error,
                    None => panic!("the complete body arrived"),
                }
            };
            resets.push(error.reason());
        }
        resets
    };
    // Far more than the minimum, over the same connection.
    let reading = read_slowly(&mut active, 10 * MINIMUM, 5);
    let (resets, read) = tokio::join!(resets, reading);
    assert_eq!(resets, [Some(Reason::CANCEL); STALLED]);
    assert!(read.is_ok(), "{read:?}");
    upstream.until("their upstream connections are free", |counts| counts.open <= 1).await;
    assert!(read_slowly(&mut active, 10 * MINIMUM, 1).await.is_ok(), "the other stream continues");
}

#[tokio::test]
async fn http2_reader_at_twice_the_minimum_is_not_reset() {
    let upstream = large().await;
    let gateway = TestGateway::with_limit(&[&upstream], 1_000, bounds());
    let client = connect(&gateway).await;
    let mut body = body(&client).await;
    let read = read_slowly(&mut body, 2 * MINIMUM, 6).await;
    assert!(read.is_ok(), "{read:?}");
}

#[tokio::test]
async fn http2_reader_at_half_the_minimum_is_reset() {
    let upstream = large().await;
    let gateway = TestGateway::with_limit(&[&upstream], 1_000, bounds());
    let client = connect(&gateway).await;
    let mut body = body(&client).await;
    let read = read_slowly(&mut body, MINIMUM / 2, 10).await;
    assert_eq!(read.map_err(|error| error.reason()), Err(Some(Reason::CANCEL)));
    upstream.until("the upstream connection is free", |counts| counts.open == 0).await;
    assert_eq!(gateway.connections(), 1, "the connection stays open");
}

/// Reads `per_window` bytes of a response over HTTP/1.1 in each window, and says after how many windows, up to `most`,
/// the gateway ended the connection. The client itself learns of it only once it has read what was sent before.
async fn ended_after(gateway: &TestGateway, per_window: usize, most: u32) -> Option<u32> {
    let socket = TcpSocket::new_v4().expect("a socket");
    // A small buffer, so that the system reads little ahead of the client.
    socket.set_recv_buffer_size(4 << 10).expect("a small buffer");
    let mut stream = within("connecting", socket.connect(gateway.address)).await.expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("a request");
    eventually("the connection is open", || gateway.connections() == 1).await;
    let mut piece = vec![0; per_window / 12];
    #[expect(clippy::disallowed_methods, reason = "the rate of a reader is one of real time")]
    let since = Instant::now();
    let mut read = 0;
    loop {
        let windows = u32::try_from(due(1, since)).expect("a few");
        if gateway.connections() == 0 {
            return Some(windows);
        }
        if windows >= most {
            return None;
        }
        if read > due(per_window, since) {
            // The rate of a reader is one of real time: the gateway measures it in threads of its own.
            sleep(TICK / 8).await;
        } else if let Ok(bytes @ 1..) = within("reading", stream.read(&mut piece)).await {
            read += bytes;
        }
    }
}

#[tokio::test]
async fn http1_reader_at_twice_the_minimum_is_not_disconnected() {
    let upstream = large().await;
    let gateway = TestGateway::with_limit(&[&upstream], 1_000, bounds());
    assert_eq!(ended_after(&gateway, 2 * MINIMUM, 6).await, None);
}

#[tokio::test]
async fn http1_reader_at_half_the_minimum_is_disconnected() {
    let upstream = large().await;
    let gateway = TestGateway::with_limit(&[&upstream], 1_000, bounds());
    let ended = ended_after(&gateway, MINIMUM / 2, 10).await;
    assert!(ended.is_some(), "the connection is still open after 10 windows");
}
