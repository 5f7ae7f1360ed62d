//! Slow readers: each response is judged by the bytes that its client takes.

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

const LOOK: Duration = Duration::from_millis(80);
/// A reader is judged over this time.
const WINDOW: Duration = LOOK.saturating_mul(6);
/// The default minimum of a window.
const MINIMUM: usize = 3_000;
const BODY: usize = 1 << 20;

fn bounds() -> ResourceLimits {
    ResourceLimits { reader_bytes: MINIMUM as u64, ..ticking(LOOK) }
}

/// An upstream whose every response has a body of [`BODY`] bytes.
async fn large() -> RecordingServer {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n").into_bytes();
    let answer = [head, vec![b'a'; BODY]].concat();
    RecordingServer::scripted(move |_| Reply::Keep(answer.clone())).await
}

/// An HTTP/2 client with the default window of each stream, and room on the connection for all of them.
async fn connect(served: &TestGateway) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(served.address).await.expect("a connection");
    let handshake = h2::client::Builder::new().initial_connection_window_size(1 << 28).handshake(stream);
    let (client, connection) = within("a handshake", handshake).await.expect("HTTP/2");
    tokio::spawn(connection);
    client
}

/// A response's body, of which nothing has been read yet.
async fn body(client: &SendRequest<Bytes>) -> RecvStream {
    let mut client = within("room", client.clone().ready()).await.expect("the connection is open");
    let request = Request::get("http://a.example/").body(()).expect("a request");
    let (response, _) = client.send_request(request, true).expect("a stream");
    let response = within("a head", response).await.expect("a head");
    assert_eq!(response.status(), 200);
    response.into_body()
}

/// What a reader has read by now that reads `per_window` bytes in each window.
fn due(per_window: usize, since: Instant) -> usize {
    let due = per_window as u128 * since.elapsed().as_micros() / WINDOW.as_micros();
    usize::try_from(due).expect("some thousands")
}

/// How a reader fares that gives `per_window` bytes of room in each window, for so many windows. The first bytes fill
/// the window of the stream, and are not waited for.
async fn read_slowly(body: &mut RecvStream, per_window: usize, windows: u32) -> Result<usize, h2::Error> {
    let mut control = body.flow_control().clone();
    let (mut received, mut released) = (0, 0);
    #[expect(clippy::disallowed_methods, reason = "the rate of a reader is one of real time")]
    let since = Instant::now();
    while since.elapsed() < WINDOW * windows {
        match tokio::time::timeout(LOOK / 8, body.data()).await {
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
async fn http2_stalled_streams_are_reset_while_another_stream_goes_on() {
    const STALLED: usize = 8;
    let upstream = large().await;
    let served = TestGateway::with_limit(&[&upstream], 1_000, bounds());
    let client = connect(&served).await;
    let mut lively = body(&client).await;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        stalled.push(body(&client).await);
    }
    upstream.until("all are answered", |counts| counts.open == STALLED + 1).await;
    let resets = async {
        let mut resets = Vec::new();
        for mut body in stalled {
            // What was sent before the reset can still be read.
            let error = loop {
                match within("a reset", body.data()).await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error,
                    None => panic!("the whole body came"),
                }
            };
            resets.push(error.reason());
        }
        resets
    };
    // Far more than the minimum, over the same connection.
    let reading = read_slowly(&mut lively, 10 * MINIMUM, 5);
    let (resets, read) = tokio::join!(resets, reading);
    assert_eq!(resets, [Some(Reason::CANCEL); STALLED]);
    assert!(read.is_ok(), "{read:?}");
    upstream.until("their upstream connections are free", |counts| counts.open <= 1).await;
    assert!(read_slowly(&mut lively, 10 * MINIMUM, 1).await.is_ok(), "the other stream goes on");
}

#[tokio::test]
async fn http2_reader_at_twice_the_minimum_survives() {
    let upstream = large().await;
    let served = TestGateway::with_limit(&[&upstream], 1_000, bounds());
    let client = connect(&served).await;
    let mut body = body(&client).await;
    let read = read_slowly(&mut body, 2 * MINIMUM, 6).await;
    assert!(read.is_ok(), "{read:?}");
}

#[tokio::test]
async fn http2_reader_at_half_the_minimum_is_reset() {
    let upstream = large().await;
    let served = TestGateway::with_limit(&[&upstream], 1_000, bounds());
    let client = connect(&served).await;
    let mut body = body(&client).await;
    let read = read_slowly(&mut body, MINIMUM / 2, 10).await;
    assert_eq!(read.map_err(|error| error.reason()), Err(Some(Reason::CANCEL)));
    upstream.until("the upstream connection is free", |counts| counts.open == 0).await;
    assert_eq!(served.connections(), 1, "the connection is left");
}

/// Reads `per_window` bytes of a response over HTTP/1.1 in each window, and says after how many windows, up to `most`,
/// the gateway ended the connection. The client itself learns of it only once it has read what was sent before.
async fn ended_after(served: &TestGateway, per_window: usize, most: u32) -> Option<u32> {
    let socket = TcpSocket::new_v4().expect("a socket");
    // The system reads ahead of the client only a little: its room is the client's own pace.
    socket.set_recv_buffer_size(4 << 10).expect("a small buffer");
    let mut stream = within("connecting", socket.connect(served.address)).await.expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("a request");
    eventually("the connection is there", || served.connections() == 1).await;
    let mut piece = vec![0; per_window / 12];
    #[expect(clippy::disallowed_methods, reason = "the rate of a reader is one of real time")]
    let since = Instant::now();
    let mut read = 0;
    loop {
        let windows = u32::try_from(due(1, since)).expect("a few");
        if served.connections() == 0 {
            return Some(windows);
        }
        if windows >= most {
            return None;
        }
        if read > due(per_window, since) {
            // The rate of a reader is one of real time: the gateway measures it in threads of its own.
            sleep(LOOK / 8).await;
        } else if let Ok(bytes @ 1..) = within("reading", stream.read(&mut piece)).await {
            read += bytes;
        }
    }
}

#[tokio::test]
async fn http1_reader_at_twice_the_minimum_survives() {
    let upstream = large().await;
    let served = TestGateway::with_limit(&[&upstream], 1_000, bounds());
    assert_eq!(ended_after(&served, 2 * MINIMUM, 6).await, None);
}

#[tokio::test]
async fn http1_reader_at_half_the_minimum_is_ended() {
    let upstream = large().await;
    let served = TestGateway::with_limit(&[&upstream], 1_000, bounds());
    let ended = ended_after(&served, MINIMUM / 2, 10).await;
    assert!(ended.is_some(), "it is still there after 10 windows");
}
