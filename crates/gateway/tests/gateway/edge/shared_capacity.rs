//! Windows and slots of HTTP/2 connections that requests of several clients share: one client does not use up those of the others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use tidegate_testkit::server::AcceptLoop;
use tidegate_testkit::wait::eventually;

use crate::fixture::{ResourceLimits, TestGateway};

const ATTACKER: [u8; 4] = [127, 0, 0, 2];
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const WAITS: &[u8] = b"GET /waits HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
/// The window of a connection that its server does not enlarge.
const WINDOW: usize = 65_535;

type Exchanges = Arc<Mutex<Vec<(RecvStream, SendResponse<Bytes>)>>>;

/// An HTTP/2 server that neither reads nor responds to a request for `/waits`.
struct WaitingServer {
    accepting: AcceptLoop,
    connections: Arc<AtomicUsize>,
    waiting: Exchanges,
}

impl WaitingServer {
    async fn start() -> Self {
        let (connections, waiting) = (Arc::new(AtomicUsize::new(0)), Exchanges::default());
        let shared = (Arc::clone(&connections), Arc::clone(&waiting));
        let accepting = AcceptLoop::start(move |_, stream| {
            let (connections, waiting) = shared.clone();
            connections.fetch_add(1, Ordering::SeqCst);
            async move {
                let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    if request.uri().path() == "/waits" {
                        waiting.lock().expect("a lock").push((request.into_body(), respond));
                    } else {
                        tokio::spawn(serve(request, respond));
                    }
                }
            }
        })
        .await;
        Self { accepting, connections, waiting }
    }

    fn gateway(&self, settings: &str) -> TestGateway {
        let policy = format!(
            "upstreams: {{ app: {{ servers: [\"{}\"], {settings} }} }}\nroutes: [{{ upstream: app }}]\n\
             rate_limits: {{ default: {{ requests: 100000, window: 1h }} }}\n",
            self.accepting.h2c()
        );
        TestGateway::start(&policy, ResourceLimits::default())
    }

    /// Sends a request, and disconnects before its response. `others` requests are in flight besides.
    async fn abort_request(&self, gateway: &TestGateway, others: usize) {
        let before = self.waiting();
        let mut client = gateway.client_from(ATTACKER).await;
        client.send(WAITS).await;
        eventually("the server has the request", || self.waiting() > before).await;
        drop(client);
        eventually("it is reset", || gateway.upstream().servers[0].in_flight == others).await;
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn waiting(&self) -> usize {
        self.waiting.lock().expect("a lock").len()
    }

    /// Bytes of the first body that waits to be read.
    fn unread(&self) -> usize {
        let mut waiting = self.waiting.lock().expect("a lock");
        waiting.first_mut().map_or(0, |(body, _)| body.flow_control().used_capacity())
    }
}

async fn serve(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let mut body = request.into_body();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
    }
    // A client that has left gets no response.
    let _ = respond.send_response(Response::new(()), true);
}

#[tokio::test]
async fn http2_upload_that_the_server_does_not_read_stops_no_upload_of_others() {
    let upstream = WaitingServer::start().await;
    let gateway = upstream.gateway("");
    let mut attacker = gateway.client_from(ATTACKER).await;
    let head = b"POST /waits HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n";
    attacker.send(&[head.as_slice(), &vec![b'a'; 200_000]].concat()).await;
    eventually("the window is used up", || upstream.unread() == WINDOW).await;
    let in_flight = || gateway.upstream().servers[0].in_flight;
    let mut clients = Vec::new();
    // The first ones may be sent before the gateway knows that the body waits for the server.
    while upstream.connections() == 1 && clients.len() < 100 {
        let mut client = gateway.client().await;
        client.send(POST).await;
        clients.push(client);
        eventually("it is sent", || in_flight() > clients.len() || upstream.connections() > 1).await;
    }
    for _ in 0..20 {
        let mut client = gateway.client().await;
        client.send(POST).await;
        assert_eq!(client.response().await.map(|response| response.status), Some(200));
    }
    assert_eq!(upstream.connections(), 2, "all others share another connection");
    assert_eq!(gateway.send_raw(GET).await.status, 200);
}

#[tokio::test]
async fn http2_requests_that_share_no_connection_leave_half_of_the_slots_to_others() {
    let upstream = WaitingServer::start().await;
    let gateway = upstream.gateway("bulkhead: { concurrent: 100, connections: 4, wait: 100ms }");
    let large = format!("GET /waits HTTP/1.1\r\nHost: a\r\nX-Large: {}\r\n\r\n", "a".repeat(10_000));
    let mut clients = Vec::new();
    for waiting in 1..=2 {
        let mut client = gateway.client_from(ATTACKER).await;
        client.send(large.as_bytes()).await;
        eventually("it waits for its response", || upstream.waiting() == waiting).await;
        clients.push(client);
    }
    for _ in 0..3 {
        let mut client = gateway.client_from(ATTACKER).await;
        client.send(large.as_bytes()).await;
        let response = client.response().await.expect("a response");
        assert!(response.text().contains("bulkhead_full"), "{}", response.text());
        assert_eq!(gateway.send_raw(GET).await.status, 200);
    }
}

#[tokio::test]
async fn http2_connections_with_aborted_requests_leave_slots_to_others() {
    let upstream = WaitingServer::start().await;
    let gateway = upstream.gateway("bulkhead: { concurrent: 100, connections: 2, wait: 100ms }");
    let in_flight = || gateway.upstream().servers[0].in_flight;
    let mut clients = Vec::new();
    for turn in 0..3 {
        let mut client = gateway.client_from(ATTACKER).await;
        client.send(WAITS).await;
        eventually("it is sent", || in_flight() == turn + 1).await;
        clients.push(client);
        // More than the gateway resets over one connection if it may open another one.
        for _ in 0..70 {
            upstream.abort_request(&gateway, turn + 1).await;
        }
        assert_eq!(gateway.send_raw(GET).await.status, 200, "{turn}");
    }
}

/// Envoy closes a connection with 500 resets, and with it the requests of others.
#[tokio::test]
async fn http2_connection_with_hundreds_of_aborted_requests_is_replaced_while_a_slot_is_free() {
    let upstream = WaitingServer::start().await;
    let gateway = upstream.gateway("bulkhead: { concurrent: 100, connections: 2, wait: 100ms }");
    let mut other = gateway.client().await;
    other.send(WAITS).await;
    eventually("it is sent", || upstream.waiting() == 1).await;
    for _ in 0..256 {
        upstream.abort_request(&gateway, 1).await;
    }
    assert_eq!(gateway.send_raw(GET).await.status, 200);
    assert_eq!(upstream.connections(), 2);
}
