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
use http::{Request, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1::UpgradeableConnection;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::activity::{InFlightBody, Watched};
use crate::bounds::Bounds;
use crate::core::Core;
use crate::forward::Hop;
use crate::guests::Place;
use crate::rounds::{Order, Ward};
use crate::runtime::LocalExecutor;
use crate::stack;

/// How HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How to speak with clients: made once for each core.
#[derive(Clone, Debug)]
pub(crate) struct Speaking {
    http1: http1::Builder,
    http2: http2::Builder<LocalExecutor>,
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
        let mut http2 = http2::Builder::new(LocalExecutor);
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(bounds.streams)
            .max_pending_accept_reset_streams(64)
            .max_local_error_reset_streams(256)
            .max_header_list_size(u32::try_from(bounds.head_bytes).unwrap_or(u32::MAX))
            .max_send_buf_size(256 << 10)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20));
        Self { http1, http2 }
    }
}

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
    let hop = Hop::new(peer, tls.is_some(), place);
    // Two tasks of different size: thousands of them are at rest.
    match tls {
        None => drop(tokio::task::spawn_local(speak(core, speaking, stream, hop))),
        Some(tls) => drop(tokio::task::spawn_local(async move {
            let handshake = Box::pin(tokio::time::timeout(core.bounds.handshake, tls.accept(stream)));
            // Who does not speak TLS is not answered.
            if let Ok(Ok(stream)) = handshake.await {
                speak(core, speaking, stream, hop).await;
            }
        })),
    }
}

async fn speak<S: Store + 'static>(
    core: Rc<Core<S>>,
    speaking: Rc<Speaking>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    hop: Hop,
) {
    let activity = Arc::clone(&hop.activity);
    let ward = core.rounds.begin(&activity);
    let service = service_fn({
        let (hop, activity) = (Rc::new(hop), Arc::clone(&activity));
        move |request: Request<Incoming>| {
            let (core, hop) = (Rc::clone(&core), Rc::clone(&hop));
            let is_http1 = request.version() < Version::HTTP_2;
            let in_flight = activity.begin(!request.body().is_end_stream());
            let (mut parts, body) = request.into_parts();
            let mut body = Some(body);
            async move {
                let mut response = stack::serve(&core, &hop, (&mut parts, &mut body)).await;
                if is_http1 && core.is_stopping() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response.map(|body| InFlightBody::new(body, in_flight)))
            }
        }
    });
    let mut stream = Watched::new(stream, activity);
    if !hears(&mut stream, &ward).await {
        return;
    }
    while stream.may_begin(PREFACE) {
        if stream.begins(PREFACE) {
            stream.multiplex();
            let connection = speaking.http2.serve_connection(TokioIo::new(stream), service);
            let mut connection = Box::pin(connection);
            // It may have streams that only wait: it does not rest.
            while attend(&mut connection, &ward, |connection| connection.as_mut().graceful_shutdown()).await
                == Order::Rest
            {}
            return;
        }
        if !hears(&mut stream, &ward).await {
            return;
        }
    }
    loop {
        // What HTTP takes is in a box that is there only while something goes on.
        let connection = speaking.http1.serve_connection(TokioIo::new(stream), service.clone());
        let mut connection = Box::new(connection.with_upgrades());
        let close = |connection: &mut Box<_>| UpgradeableConnection::graceful_shutdown(Pin::new(connection));
        if attend(&mut connection, &ward, close).await != Order::Rest {
            return;
        }
        let Some(parts) = connection.into_parts() else { return };
        stream = parts.io.into_inner();
        stream.unread(parts.read_buf);
        if !hears(&mut stream, &ward).await {
            return;
        }
    }
}

/// Waits until a client says something more.
async fn hears<T: AsyncRead + Unpin>(stream: &mut Watched<T>, ward: &Ward) -> bool {
    poll_fn(|cx| match ward.order(cx) {
        Order::Stay | Order::Rest => stream.poll_hear(cx).map(|heard| heard.is_ok_and(|bytes| bytes > 0)),
        Order::Close | Order::End => Poll::Ready(false),
    })
    .await
}

/// Polls a connection until it ends, or may rest. One that breaks off is the client's business; there is nobody left
/// to tell.
async fn attend<C: Future + Unpin>(connection: &mut C, ward: &Ward, close: impl Fn(&mut C)) -> Order {
    poll_fn(|cx| {
        match ward.order(cx) {
            Order::Stay => {}
            Order::Close => close(connection),
            order @ (Order::Rest | Order::End) => return Poll::Ready(order),
        }
        match Pin::new(&mut *connection).poll(cx) {
            Poll::Ready(_) => Poll::Ready(Order::End),
            Poll::Pending if ward.makes_room() => Poll::Ready(Order::Rest),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
