//! One client's connection: TLS or not, HTTP/1.1 or HTTP/2.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1::UpgradeableConnection;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_listener::{BodyLength, ConnectionPermit};
use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::idle_watchdog::{IdleAction, WatchHandle};
use super::io::{ClientSocket, TrackedIo};
use super::response_streams::{InFlightBody, ResponseStreams, StreamExecutor};
use super::send_queue::AddressPair;
use super::unparsable;
use crate::error::omit_body;
use crate::http::hop_headers::ConnInfo;
use crate::http::request_body::UploadHandle;
use crate::http::response_body::ResponseBody;
use crate::resource_limits::ResourceLimits;
use crate::service::ReceivedRequest;
use crate::worker::Worker;

/// Kept while a connection, upgraded or not, is open: it is counted, and a draining worker waits for it.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    _permit: ConnectionPermit,
    _open: TaskTrackerToken,
}

impl ConnectionGuard {
    pub(super) fn new(permit: ConnectionPermit, open: TaskTrackerToken) -> Self {
        Self { _permit: permit, _open: open }
    }
}

/// What hyper's read buffer has beside the largest head, so that a body of that size fits with its head.
const BESIDE_HEAD: usize = 8 << 10;

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How much of a request body an HTTP/2 client may send before it is forwarded.
const STREAM_WINDOW: u32 = 128 << 10;

/// How much of a response is buffered for an HTTP/2 client that does not read it.
const SEND_BUFFER: usize = 32 << 10;

/// Streams that a client may reset before they are accepted. More close its connection.
const MAX_PENDING_RESETS: usize = 64;
/// The same for a trusted proxy, whose clients share the connection: one of them must not close it for all. Memory bounds it.
const MAX_PENDING_RESETS_OF_PROXY: usize = 8_192;
/// Malformed requests that a client may send over one connection. Those of a proxy are not bounded: it reads their resets.
const MAX_MALFORMED: usize = 256;

/// hyper's settings, created once for each listening socket.
#[derive(Clone, Debug)]
pub(super) struct HttpBuilders {
    http1: http1::Builder,
}

impl HttpBuilders {
    pub(super) fn new(limits: &ResourceLimits) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            // The watchdog enforces the head timeout without a timer for each request.
            .header_read_timeout(None)
            .max_headers(limits.headers)
            .max_header_size(limits.head_bytes)
            .max_buf_size(limits.head_bytes + BESIDE_HEAD);
        Self { http1 }
    }
}

/// hyper's settings for one HTTP/2 connection. The executor is per connection: it records the task of each stream.
fn http2(
    limits: &ResourceLimits,
    streams: &Rc<ResponseStreams>,
    is_trusted: bool,
) -> http2::Builder<StreamExecutor> {
    let mut http2 = http2::Builder::new(StreamExecutor(Rc::clone(streams)));
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_pending_accept_reset_streams(if is_trusted {
            MAX_PENDING_RESETS_OF_PROXY
        } else {
            MAX_PENDING_RESETS
        })
        .max_local_error_reset_streams((!is_trusted).then_some(MAX_MALFORMED))
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        // Uploads that stall leave room for all others: behind a proxy they belong to different clients.
        .initial_connection_window_size(STREAM_WINDOW.saturating_mul(limits.streams).min(i32::MAX as u32))
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    http2
}

type ServiceResponse = Response<InFlightBody<ResponseBody>>;

/// An accepted connection.
#[derive(Debug)]
pub(super) struct ClientConn {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) guard: ConnectionGuard,
}

/// Spawns a task that serves a connection until the client, the watchdog or a shutdown closes it.
pub(super) fn serve<S: Store + 'static>(
    worker: Rc<Worker<S>>,
    http: Rc<HttpBuilders>,
    ClientConn { stream, peer, guard }: ClientConn,
    tls: Option<TlsAcceptor>,
) {
    // Small writes are whole responses. If the option cannot be set, the socket is about to fail anyway.
    let _ = stream.set_nodelay(true);
    let addresses = stream.local_addr().ok().map(|local| (local, peer));
    let conn_info = ConnInfo::new(peer, tls.is_some(), guard);
    let stream = ClientSocket::new(stream, Arc::clone(&conn_info.activity));
    // Without TLS the task is smaller, which saves memory with thousands of idle connections.
    match tls {
        None => drop(tokio::task::spawn_local(serve_http(worker, http, stream, (conn_info, addresses)))),
        Some(tls) => drop(tokio::task::spawn_local(async move {
            let handshake =
                Box::pin(tokio::time::timeout(worker.limits.handshake_timeout, tls.accept(stream)));
            // A client that fails the handshake gets no response.
            if let Ok(Ok(stream)) = handshake.await {
                serve_http(worker, http, stream, (conn_info, addresses)).await;
            }
        })),
    }
}

async fn serve_http<S: Store + 'static>(
    worker: Rc<Worker<S>>,
    http: Rc<HttpBuilders>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    (conn_info, addresses): (ConnInfo, Option<AddressPair>),
) {
    let watch = worker.watchdog.watch(&conn_info.activity, addresses);
    let conn_info = Rc::new(conn_info);
    let mut stream = TrackedIo::new(stream, Arc::clone(&conn_info.activity), worker.limits.body_bytes);
    if !wait_readable(&mut stream, &watch).await {
        return;
    }
    while stream.may_start_with(PREFACE) {
        if stream.ahead().starts_with(PREFACE) {
            let streams = watch.begin_http2(stream.ahead());
            stream.end_http1();
            let is_trusted = worker.snapshot().plan().identities.addresses().trusts(conn_info.peer);
            let http2 = http2(&worker.limits, &streams, is_trusted);
            let service = service(&worker, &conn_info, Some(streams));
            let mut connection = Box::pin(http2.serve_connection(TokioIo::new(stream), service));
            // An HTTP/2 connection is never parked: it may have streams that are waiting.
            while drive(&mut connection, &watch, |connection| connection.as_mut().graceful_shutdown()).await
                == DriveOutcome::Park
            {}
            return;
        }
        if !wait_readable(&mut stream, &watch).await {
            return;
        }
    }
    let service = service(&worker, &conn_info, None);
    loop {
        // hyper's state is boxed and freed while the connection is parked.
        let connection = http.http1.serve_connection(TokioIo::new(stream), service.clone());
        let mut connection = Box::new(connection.with_upgrades());
        let close = |connection: &mut Box<_>| UpgradeableConnection::graceful_shutdown(Pin::new(connection));
        let outcome = drive(&mut connection, &watch, close).await;
        if outcome == DriveOutcome::End {
            return;
        }
        let Some(parts) = connection.into_parts() else { return };
        stream = parts.io.into_inner();
        if outcome == DriveOutcome::Reject {
            // hyper has not used the bytes of the head that it cannot parse.
            let is_head = parts.read_buf.trim_ascii_start().starts_with(b"HEAD ");
            let mut response = Box::pin(unparsable::respond(worker, conn_info, stream, is_head));
            drive(&mut response, &watch, |_| {}).await;
            return;
        }
        // Bytes that were read with an earlier request are served now: the client may not send more.
        stream.put_back(parts.read_buf);
        if stream.ahead().is_empty() && !wait_readable(&mut stream, &watch).await {
            return;
        }
    }
}

/// Serves the requests of a connection; over HTTP/2 each is one of `streams`.
fn service<S: Store + 'static>(
    worker: &Rc<Worker<S>>,
    conn_info: &Rc<ConnInfo>,
    streams: Option<Rc<ResponseStreams>>,
) -> impl Service<Request<Incoming>, Response = ServiceResponse, Error = Infallible, Future: 'static>
+ Clone
+ use<S> {
    let (worker, conn_info) = (Rc::clone(worker), Rc::clone(conn_info));
    service_fn(move |request: Request<Incoming>| {
        let (worker, conn_info) = (Rc::clone(&worker), Rc::clone(&conn_info));
        let is_http1 = request.version() < Version::HTTP_2;
        let has_body = !request.body().is_end_stream();
        let mut may_be_late = false;
        if has_body && is_http1 {
            let length = request.body().size_hint().exact();
            may_be_late = length.is_none_or(|length| length > conn_info.activity.ahead());
            conn_info.activity.body_follows(length.map_or(BodyLength::Chunked, BodyLength::Known));
        }
        let in_flight = conn_info.activity.begin_request(has_body);
        let stream = streams.as_ref().map(ResponseStreams::begin);
        let (parts, body) = request.into_parts();
        let is_head = parts.method == Method::HEAD;
        let mut request = ReceivedRequest { parts, body: Some(body), upload: UploadHandle::default() };
        async move {
            let mut response = crate::service::serve(&worker, &conn_info, &mut request).await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                conn_info.activity.body_follows(BodyLength::ENDLESS);
            } else if is_http1 && (worker.is_stopping() || may_be_late && conn_info.activity.is_body_unread())
            {
                // After a response to a body that it does not have, hyper closes the connection: a client that is not told would
                // lose its next request.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            if is_head && matches!(response.body(), ResponseBody::Own(Some(_))) {
                omit_body(&mut response);
            }
            if stream.is_some() {
                response.body_mut().limit_chunks();
            }
            Ok::<_, Infallible>(response.map(|body| InFlightBody::new(body, in_flight, stream)))
        }
    })
}

/// Waits until the client sends something; `false` if the connection must close.
async fn wait_readable<T: AsyncRead + Unpin>(stream: &mut TrackedIo<T>, watch: &WatchHandle) -> bool {
    poll_fn(|cx| match watch.poll_action(cx) {
        IdleAction::Keep | IdleAction::Park => {
            stream.poll_fill(cx).map(|read| read.is_ok_and(|bytes| bytes > 0))
        }
        IdleAction::Drain | IdleAction::Abort => Poll::Ready(false),
    })
    .await
}

/// Why a connection is no longer polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriveOutcome {
    End,
    /// It is idle: drop its HTTP state until the client sends something.
    Park,
    /// hyper cannot parse a head: respond to it.
    Reject,
}

/// Polls a connection until it ends, can be parked, or needs a response to an unparsable head. Errors of the connection
/// are ignored: the client has disconnected.
async fn drive<C: Future + Unpin>(
    connection: &mut C,
    watch: &WatchHandle,
    close: impl Fn(&mut C),
) -> DriveOutcome {
    poll_fn(|cx| {
        match watch.poll_action(cx) {
            IdleAction::Keep => {}
            IdleAction::Drain => close(connection),
            IdleAction::Park => return Poll::Ready(DriveOutcome::Park),
            IdleAction::Abort => return Poll::Ready(DriveOutcome::End),
        }
        match Pin::new(&mut *connection).poll(cx) {
            Poll::Ready(_) => Poll::Ready(DriveOutcome::End),
            Poll::Pending if watch.is_unparsable() => Poll::Ready(DriveOutcome::Reject),
            Poll::Pending if watch.should_park() => Poll::Ready(DriveOutcome::Park),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
