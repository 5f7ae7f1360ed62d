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
use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1::UpgradeableConnection;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::conn::client_socket::ClientSocket;
use crate::conn::client_stream::Watched;
use crate::conn::connection_limit::Place;
use crate::conn::idle_watchdog::{Order, Ward};
use crate::conn::response_streams::{InFlightBody, ResponseStreams, StreamExecutor};
use crate::conn::send_queue::Ends;
use crate::conn::unparsable;
use crate::http::hop_headers::ConnInfo;
use crate::http::response_body::ResponseBody;
use crate::resource_limits::Bounds;
use crate::service::Received;
use crate::worker::Core;

/// How HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How to speak with clients: made once for each core.
#[derive(Clone, Debug)]
pub(crate) struct Speaking {
    http1: http1::Builder,
}

impl Speaking {
    pub(crate) fn new(bounds: &Bounds) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            // Slow heads are ended by `rounds`, which needs no timer for each request.
            .header_read_timeout(None)
            .max_headers(bounds.headers)
            .max_buf_size(bounds.head_bytes);
        Self { http1 }
    }
}

/// HTTP/2 over one connection: it spawns the tasks of its own streams.
fn http2(bounds: &Bounds, streams: &Rc<ResponseStreams>) -> http2::Builder<StreamExecutor> {
    let mut http2 = http2::Builder::new(StreamExecutor(Rc::clone(streams)));
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(bounds.streams)
        .max_pending_accept_reset_streams(64)
        .max_local_error_reset_streams(256)
        .max_header_list_size(u32::try_from(bounds.head_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(256 << 10)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    http2
}

type Served = Response<InFlightBody<ResponseBody>>;

/// Who has come in.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) place: Place,
}

/// Serves a connection until its client, its idleness or its core ends it.
pub(crate) fn serve<S: Store + 'static>(
    core: Rc<Core<S>>,
    speaking: Rc<Speaking>,
    Client { stream, peer, place }: Client,
    tls: Option<TlsAcceptor>,
) {
    // Small writes are whole answers; a socket that cannot be set is about to fail anyway.
    let _ = stream.set_nodelay(true);
    let ends = stream.local_addr().ok().map(|local| (local, peer));
    let hop = ConnInfo::new(peer, tls.is_some(), place);
    let stream = ClientSocket::new(stream, Arc::clone(&hop.activity));
    // Two tasks of different size: thousands of them are at rest.
    match tls {
        None => drop(tokio::task::spawn_local(speak(core, speaking, stream, (hop, ends)))),
        Some(tls) => drop(tokio::task::spawn_local(async move {
            let handshake = Box::pin(tokio::time::timeout(core.bounds.handshake, tls.accept(stream)));
            // Who does not speak TLS is not answered.
            if let Ok(Ok(stream)) = handshake.await {
                speak(core, speaking, stream, (hop, ends)).await;
            }
        })),
    }
}

async fn speak<S: Store + 'static>(
    core: Rc<Core<S>>,
    speaking: Rc<Speaking>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    (hop, ends): (ConnInfo, Option<Ends>),
) {
    let ward = core.rounds.begin(&hop.activity, ends);
    let hop = Rc::new(hop);
    let mut stream = Watched::new(stream, Arc::clone(&hop.activity));
    if !hears(&mut stream, &ward).await {
        return;
    }
    while stream.may_begin(PREFACE) {
        if stream.ahead().starts_with(PREFACE) {
            let streams = Rc::new(ResponseStreams::new(stream.ahead(), core.bounds.reader_bytes));
            ward.multiplex(Rc::clone(&streams));
            let http2 = http2(&core.bounds, &streams);
            let service = service(&core, &hop, Some(streams));
            let mut connection = Box::pin(http2.serve_connection(TokioIo::new(stream), service));
            // It may have streams that only wait: it does not rest.
            while attend(&mut connection, &ward, |connection| connection.as_mut().graceful_shutdown()).await
                == Next::Park
            {}
            return;
        }
        if !hears(&mut stream, &ward).await {
            return;
        }
    }
    let service = service(&core, &hop, None);
    loop {
        // What HTTP takes is in a box that is there only while something goes on.
        let connection = speaking.http1.serve_connection(TokioIo::new(stream), service.clone());
        let mut connection = Box::new(connection.with_upgrades());
        let close = |connection: &mut Box<_>| UpgradeableConnection::graceful_shutdown(Pin::new(connection));
        let next = attend(&mut connection, &ward, close).await;
        if next == Next::End {
            return;
        }
        let Some(parts) = connection.into_parts() else { return };
        stream = parts.io.into_inner();
        if next == Next::Reject {
            let mut answering = Box::pin(unparsable::answer(core, hop, stream));
            attend(&mut answering, &ward, |_| {}).await;
            return;
        }
        // What came with an earlier request is served at once: nothing else may follow it.
        let is_ahead = !parts.read_buf.is_empty();
        stream.unread(parts.read_buf);
        if !is_ahead && !hears(&mut stream, &ward).await {
            return;
        }
    }
}

/// Serves the requests of a connection; over HTTP/2 each is one of `streams`.
fn service<S: Store + 'static>(
    core: &Rc<Core<S>>,
    hop: &Rc<ConnInfo>,
    streams: Option<Rc<ResponseStreams>>,
) -> impl Service<Request<Incoming>, Response = Served, Error = Infallible, Future: 'static> + Clone + use<S>
{
    let (core, hop) = (Rc::clone(core), Rc::clone(hop));
    service_fn(move |request: Request<Incoming>| {
        let (core, hop) = (Rc::clone(&core), Rc::clone(&hop));
        let is_http1 = request.version() < Version::HTTP_2;
        let in_flight = hop.activity.begin(!request.body().is_end_stream());
        let stream = streams.as_ref().map(ResponseStreams::begin);
        let (parts, body) = request.into_parts();
        let mut request = Received { parts, body: Some(body) };
        async move {
            let mut response = crate::service::serve(&core, &hop, &mut request).await;
            if is_http1 && core.is_stopping() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| InFlightBody::new(body, in_flight, stream)))
        }
    })
}

/// Waits until a client says something more.
async fn hears<T: AsyncRead + Unpin>(stream: &mut Watched<T>, ward: &Ward) -> bool {
    poll_fn(|cx| match ward.order(cx) {
        Order::Stay | Order::Rest => stream.poll_hear(cx).map(|heard| heard.is_ok_and(|bytes| bytes > 0)),
        Order::Close | Order::End => Poll::Ready(false),
    })
    .await
}

/// What becomes of a connection that is not polled any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    End,
    /// It gives back the memory that it works with until its client says something.
    Park,
    /// Its client is told that its head cannot be parsed.
    Reject,
}

/// Polls a connection until it ends, may rest, or is to be answered by us. One that breaks off is the client's business;
/// there is nobody left to tell.
async fn attend<C: Future + Unpin>(connection: &mut C, ward: &Ward, close: impl Fn(&mut C)) -> Next {
    poll_fn(|cx| {
        match ward.order(cx) {
            Order::Stay => {}
            Order::Close => close(connection),
            Order::Rest => return Poll::Ready(Next::Park),
            Order::End => return Poll::Ready(Next::End),
        }
        match Pin::new(&mut *connection).poll(cx) {
            Poll::Ready(_) => Poll::Ready(Next::End),
            Poll::Pending if ward.is_unparsable() => Poll::Ready(Next::Reject),
            Poll::Pending if ward.makes_room() => Poll::Ready(Next::Park),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
