//! One client's connection: TLS or not, HTTP/1.1 or HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{StatusCode, Version};
use http_body::Body;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::activity::{InFlightBody, Watch, Watched};
use crate::bounds::Bounds;
use crate::core::Core;
use crate::forward::Hop;
use crate::guests::Place;
use crate::runtime::LocalExecutor;
use crate::stack;

/// When stopping, a connection over which nothing has moved for so long is closed. At once would be too soon: a request
/// may be on its way, and over HTTP/1.1 only an answer can say that no other is taken.
const LINGER: Duration = Duration::from_millis(500);

/// How to speak with clients: made once for each core.
#[derive(Clone, Debug)]
pub(crate) struct Speaking {
    http: auto::Builder<LocalExecutor>,
}

impl Speaking {
    pub(crate) fn new(bounds: &Bounds) -> Self {
        let mut http = auto::Builder::new(LocalExecutor);
        http.http1()
            .timer(TokioTimer::new())
            // Slow heads are ended by `activity`, which needs no timer for each request.
            .header_read_timeout(None)
            .max_headers(bounds.headers)
            .max_buf_size(bounds.head_bytes);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(bounds.streams)
            .max_pending_accept_reset_streams(64)
            .max_local_error_reset_streams(256)
            .max_header_list_size(u32::try_from(bounds.head_bytes).unwrap_or(u32::MAX))
            .max_send_buf_size(256 << 10)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20));
        Self { http }
    }
}

/// Who has come in.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) place: Place,
}

/// Serves a connection until its client, its idleness or `stop` ends it.
pub(crate) async fn serve<S: Store + 'static>(
    core: Rc<Core<S>>,
    speaking: Speaking,
    Client { stream, peer, place }: Client,
    tls: Option<TlsAcceptor>,
    stop: watch::Receiver<bool>,
) {
    // Small writes are whole answers; a socket that cannot be set is about to fail anyway.
    let _ = stream.set_nodelay(true);
    match tls {
        None => speak(core, speaking, stream, Hop::new(peer, false, place), stop).await,
        Some(tls) => {
            let handshake = tokio::time::timeout(core.bounds.handshake, tls.accept(stream));
            // Who does not speak TLS is not answered.
            if let Ok(Ok(stream)) = handshake.await {
                speak(core, speaking, stream, Hop::new(peer, true, place), stop).await;
            }
        }
    }
}

async fn speak<S: Store + 'static>(
    core: Rc<Core<S>>,
    speaking: Speaking,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    hop: Hop,
    mut stop: watch::Receiver<bool>,
) {
    let (look, reader_bytes) = (core.bounds.look, core.bounds.reader_bytes);
    let activity = Arc::clone(&hop.activity);
    let hop = Rc::new(hop);
    let service = service_fn({
        let activity = Arc::clone(&activity);
        move |request: http::Request<hyper::body::Incoming>| {
            let (core, hop) = (Rc::clone(&core), Rc::clone(&hop));
            let in_flight =
                activity.begin(request.version() == Version::HTTP_2, !request.body().is_end_stream());
            async move {
                let is_http1 = request.version() < Version::HTTP_2;
                let mut response = stack::serve(&core, &hop, request).await;
                if is_http1 && core.is_stopping() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response.map(|body| InFlightBody::new(body, in_flight)))
            }
        }
    });
    let io = TokioIo::new(Watched::new(stream, Arc::clone(&activity)));
    let mut connection = pin!(speaking.http.serve_connection_with_upgrades(io, service));
    let mut watched = Watch::default();
    let mut look = tokio::time::interval(look);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    look.reset();
    let mut is_stopping = false;
    loop {
        tokio::select! {
            biased;
            // A connection that breaks off is the client's business; there is nobody left to tell.
            _ = connection.as_mut() => return,
            _ = stop.wait_for(|stop| *stop), if !is_stopping => {
                is_stopping = true;
                look = tokio::time::interval(LINGER);
                look.reset();
            }
            _ = look.tick() => {
                if is_stopping {
                    if Watch::may_close(&activity) {
                        connection.as_mut().graceful_shutdown();
                    }
                } else if watched.is_over(&activity, reader_bytes) {
                    return;
                }
            }
        }
    }
}
