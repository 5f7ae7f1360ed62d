//! Requests that make an HTTP/2 server close a connection that other clients use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{Request, Response};
use tidegate_testkit::client::RawClient;
use tidegate_testkit::server::AcceptLoop;
use tidegate_testkit::wait::{eventually, within};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::shared_connections::{assert_breaker_closed, gateway};
use crate::fixture::TestGateway;

const ATTACKER: [u8; 4] = [127, 0, 0, 2];

/// What a handler does with a request.
enum Handling {
    Respond,
    /// Responds when the server is released.
    Hold,
    /// Closes the connection.
    Close,
    /// Begins the response, and then closes the connection.
    CloseLater,
    /// Resets all other streams, and then closes the connection, as Node.js does.
    ResetAndClose,
    /// Resets the stream because of an overload.
    Calm,
}

/// An HTTP/2 server. `handle` gets the number of the connection and the path.
struct ClosingServer {
    accepting: AcceptLoop,
    held: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    release: watch::Sender<bool>,
}

impl ClosingServer {
    async fn start(handle: fn(usize, &str) -> Handling) -> Self {
        let (release, released) = watch::channel(false);
        let (held, connections) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = (Arc::clone(&held), Arc::clone(&connections));
        let accepting = AcceptLoop::start(move |_, stream| {
            let ((held, connections), mut released) = (counted.clone(), released.clone());
            async move {
                let number = connections.fetch_add(1, Ordering::SeqCst);
                let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                let (mut bodies, mut waiting) = (Vec::new(), Vec::new());
                loop {
                    let accepted = tokio::select! {
                        accepted = connection.accept() => accepted,
                        Ok(_) = released.wait_for(|released| *released), if !waiting.is_empty() => {
                            for mut respond in waiting.drain(..) {
                                send(&mut respond);
                            }
                            continue;
                        }
                    };
                    let Some(Ok((request, mut respond))) = accepted else { return };
                    match handle(number, request.uri().path()) {
                        Handling::Respond => send(&mut respond),
                        Handling::Hold => {
                            waiting.push(respond);
                            held.fetch_add(1, Ordering::SeqCst);
                        }
                        Handling::Close => return,
                        Handling::CloseLater => {
                            let stream = respond.send_response(Response::new(()), false).expect("a stream");
                            bodies.push(stream);
                            return flush(&mut connection).await;
                        }
                        Handling::ResetAndClose => {
                            for respond in &mut waiting {
                                respond.send_reset(h2::Reason::NO_ERROR);
                            }
                            return flush(&mut connection).await;
                        }
                        Handling::Calm => respond.send_reset(h2::Reason::ENHANCE_YOUR_CALM),
                    }
                }
            }
        })
        .await;
        Self { accepting, held, connections, release }
    }
}

fn send(respond: &mut SendResponse<Bytes>) {
    // Fails if the connection was closed meanwhile.
    let _ = respond.send_response(Response::new(()), true);
}

/// Writes what is pending.
async fn flush(connection: &mut h2::server::Connection<TcpStream, Bytes>) {
    std::future::poll_fn(|cx| {
        let _ = connection.poll_accept(cx);
        Poll::Ready(())
    })
    .await;
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
}

/// A request of a client of its own that the server holds.
async fn hold(gateway: &TestGateway, server: &ClosingServer, number: u8) -> RawClient {
    let mut client = gateway.client_from([127, 0, 0, 10 + number]).await;
    client.send(&get("/hold")).await;
    let held = usize::from(number) + 1;
    eventually("the server has the request", || server.held.load(Ordering::SeqCst) == held).await;
    client
}

/// One client makes the server close connections. Two of them break others' requests, then no more.
async fn assert_others_are_harmed_twice_at_most(handle: fn(usize, &str) -> Handling) {
    let server = ClosingServer::start(handle).await;
    let settings = "retry: off, breaker: { failures: 3 }, eject: { after: 3 }";
    let gateway = gateway(&server.accepting.h2c(), settings);
    let mut others = Vec::new();
    for number in 0..8 {
        // What one client causes counts little only while requests of others succeed.
        assert_eq!(gateway.get_raw("/").await.status, 200);
        let mut other = hold(&gateway, &server, number).await;
        let mut attacker = gateway.client_from(ATTACKER).await;
        attacker.send(&get("/close")).await;
        let response = within("an end", attacker.response()).await;
        assert!(response.is_none_or(|response| response.status == 502));
        if number < 2 {
            assert_eq!(other.response().await.map(|response| response.status), Some(502), "{number}");
        } else {
            others.push(other);
        }
        assert_breaker_closed(&gateway);
    }
    server.release.send_replace(true);
    for mut other in others {
        assert_eq!(within("a response", other.response()).await.map(|response| response.status), Some(200));
    }
}

#[tokio::test]
async fn http2_client_whose_requests_close_connections_soon_harms_no_other_client() {
    let handle = |_, path: &str| match path {
        "/close" => Handling::Close,
        "/hold" => Handling::Hold,
        _ => Handling::Respond,
    };
    assert_others_are_harmed_twice_at_most(handle).await;
}

#[tokio::test]
async fn http2_client_whose_responses_close_connections_soon_harms_no_other_client() {
    let handle = |_, path: &str| match path {
        "/close" => Handling::CloseLater,
        "/hold" => Handling::Hold,
        _ => Handling::Respond,
    };
    assert_others_are_harmed_twice_at_most(handle).await;
}

#[tokio::test]
async fn http2_client_whose_requests_reset_streams_and_close_connections_soon_harms_no_other_client() {
    let handle = |_, path: &str| match path {
        "/close" => Handling::ResetAndClose,
        "/hold" => Handling::Hold,
        _ => Handling::Respond,
    };
    assert_others_are_harmed_twice_at_most(handle).await;
}

#[tokio::test]
async fn http2_server_that_closes_all_connections_opens_the_breaker() {
    let server = ClosingServer::start(|_, _| Handling::Close).await;
    let gateway = gateway(&server.accepting.h2c(), "retry: off, breaker: { failures: 3 }");
    for number in 0..3 {
        let mut client = gateway.client_from([127, 0, 0, 10 + number]).await;
        client.send(&get("/")).await;
        assert_eq!(client.response().await.map(|response| response.status), Some(502), "{number}");
    }
    let mut client = gateway.client().await;
    client.send(&get("/")).await;
    assert_eq!(client.response().await.map(|response| response.status), Some(503));
}

#[tokio::test]
async fn http2_connection_on_which_the_server_asks_for_calm_gets_no_more_requests() {
    let server = ClosingServer::start(|number, path| match (number, path) {
        (0, "/") => Handling::Respond,
        (0, _) => Handling::Calm,
        _ => Handling::Respond,
    })
    .await;
    let gateway = gateway(&server.accepting.h2c(), "breaker: { failures: 1 }, eject: { after: 1 }");
    assert_eq!(gateway.get_raw("/").await.status, 200);
    let mut other = gateway.client_from(ATTACKER).await;
    other.send(&get("/")).await;
    assert_eq!(other.response().await.map(|response| response.status), Some(200));
    assert_eq!(gateway.get_raw("/calm").await.status, 200, "sent again over another connection");
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
    assert_breaker_closed(&gateway);
}

#[tokio::test]
async fn http2_upload_in_many_small_chunks_is_sent_in_few_frames() {
    const CHUNKS: usize = 4_000;
    let (counts, mut counted) = tokio::sync::mpsc::unbounded_channel();
    let server = AcceptLoop::start(move |_, stream| {
        let counts = counts.clone();
        async move {
            let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let (request, counts): (Request<h2::RecvStream>, _) = (request, counts.clone());
                tokio::spawn(async move {
                    let (mut body, mut frames, mut bytes) = (request.into_body(), 0_usize, 0);
                    while let Some(Ok(data)) = body.data().await {
                        frames += 1;
                        bytes += data.len();
                        body.flow_control().release_capacity(data.len()).expect("a stream");
                    }
                    counts.send((frames, bytes)).expect("a receiver");
                    send(&mut respond);
                });
            }
        }
    })
    .await;
    let gateway = gateway(&server.h2c(), "");
    let chunks = "1\r\na\r\n".repeat(CHUNKS);
    let upload = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
    assert_eq!(gateway.send_raw(&upload).await.status, 200);
    let (frames, bytes) = within("the upload", counted.recv()).await.expect("an upload");
    assert_eq!(bytes, CHUNKS);
    assert!(frames <= CHUNKS / 50, "{frames} frames");
}
