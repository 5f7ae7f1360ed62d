//! Sends one request over a connection.
//!
//! A connection over which nothing arrives while an attempt times out is retired: further requests use another one. HTTP/2
//! connections are also tested with pings while requests wait for them.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::{CaptureConnection, HttpConnector, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::body::SendBody;
use crate::error::BoxError;
use crate::watched_io::{ReceivedBytes, WatchedConnector};

/// A longer time would overflow the clock of the pool, which adds it to now.
const LONGEST_IDLE: Duration = Duration::from_hours(24 * 365);

/// The body of a response as the transport delivers it.
pub(crate) type TransportBody = UnsyncBoxBody<Bytes, BoxError>;

/// A request in progress.
pub(crate) type TransportFuture =
    Pin<Box<dyn Future<Output = Result<Response<TransportBody>, TransportError>> + Send>>;

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum TransportError {
    /// There is no response within the timeout.
    Timeout,
    /// No connection was made, so nothing was sent.
    Connect(BoxError),
    /// The connection broke.
    Lost(BoxError),
    /// The request body failed.
    Upload(BoxError),
    /// The request cannot be sent over any connection.
    Invalid(BoxError),
}

/// The connection that a request is sent over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionChoice {
    /// One that is open already, if there is one.
    Any,
    /// A new one: after a timeout, all open connections to the host may be dead.
    New,
}

/// Sends one request, without any policy.
pub(crate) trait HttpTransport: fmt::Debug + Send + Sync {
    /// The head of the response arrives within `timeout`.
    fn send(
        &self,
        request: Request<SendBody>,
        timeout: Duration,
        connection: ConnectionChoice,
    ) -> TransportFuture;
}

/// Pooled HTTP/1.1 and HTTP/2 connections, with TLS for `https`.
#[derive(Clone, Debug)]
pub(crate) struct PooledTransport {
    pooled: ConnectionPool,
    /// Makes a connection for each request.
    unpooled: ConnectionPool,
}

type ConnectionPool = HyperClient<WatchedConnector<HttpsConnector<HttpConnector>>, SendBody>;

/// How connections are made.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSettings {
    pub(crate) tls: rustls::ClientConfig,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) http2_only: bool,
    pub(crate) http2_pings: Http2Pings,
}

/// When an HTTP/2 connection is tested while requests wait for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Http2Pings {
    /// After this time without any byte.
    pub(crate) interval: Duration,
    /// A connection without a reply for this time is closed.
    pub(crate) timeout: Duration,
}

impl Http2Pings {
    /// A dead connection is found in half of the default timeout of an attempt.
    pub(crate) const DEFAULT: Self =
        Self { interval: Duration::from_secs(10), timeout: Duration::from_secs(5) };
}

impl PooledTransport {
    pub(crate) fn new(settings: ConnectionSettings) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(settings.connect_timeout));
        // A connection that dies while it is idle is closed within half a minute.
        tcp.set_keepalive(Some(Duration::from_secs(15)));
        tcp.set_keepalive_interval(Some(Duration::from_secs(5)));
        tcp.set_keepalive_retries(Some(3));
        // ALPN chooses the version over TLS.
        let tls = HttpsConnectorBuilder::new().with_tls_config(settings.tls).https_or_http();
        let connector = if settings.http2_only {
            tls.enable_http2().wrap_connector(tcp)
        } else {
            tls.enable_all_versions().wrap_connector(tcp)
        };
        let mut builder = HyperClient::builder(TokioExecutor::new());
        builder
            .pool_idle_timeout(settings.idle_timeout.min(LONGEST_IDLE))
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http2_only(settings.http2_only)
            .http2_keep_alive_interval(settings.http2_pings.interval)
            .http2_keep_alive_timeout(settings.http2_pings.timeout);
        let pooled = builder.build(WatchedConnector(connector.clone()));
        let unpooled = builder.pool_max_idle_per_host(0).build(WatchedConnector(connector));
        Self { pooled, unpooled }
    }
}

impl HttpTransport for PooledTransport {
    fn send(
        &self,
        mut request: Request<SendBody>,
        timeout: Duration,
        connection: ConnectionChoice,
    ) -> TransportFuture {
        let failure = request.body().failure();
        let client = if connection == ConnectionChoice::New { &self.unpooled } else { &self.pooled };
        let connection = capture_connection(&mut request);
        let response = client.request(request);
        Box::pin(async move {
            let mut watch = ConnectionWatch { connection, start: None };
            let mut response = pin!(response);
            let waiting = async {
                tokio::select! {
                    biased;
                    response = &mut response => return response,
                    () = watch.start() => {}
                }
                response.await
            };
            let response = tokio::select! {
                biased;
                response = waiting => response,
                () = tokio::time::sleep(timeout) => {
                    watch.retire_if_silent();
                    return Err(TransportError::Timeout);
                }
            };
            let response = response.map_err(|error| match failure.and_then(|failure| failure.take()) {
                Some(source) => TransportError::Upload(source),
                None => error.into(),
            })?;
            Ok(deliver(response))
        })
    }
}

/// Tells the connection of a response about each part of it that is delivered.
fn deliver(mut response: Response<Incoming>) -> Response<TransportBody> {
    let received = response.extensions_mut().remove::<ReceivedBytes>().unwrap_or_default();
    received.mark_part();
    response.map(|body| {
        let body = body.map_frame(move |frame| {
            received.mark_part();
            frame
        });
        body.map_err(Into::into).boxed_unsync()
    })
}

/// The connection of a request.
struct ConnectionWatch {
    connection: CaptureConnection,
    /// What the connection had received when it was chosen for the request.
    start: Option<(ReceivedBytes, u64)>,
}

impl ConnectionWatch {
    /// Waits until the request has a connection.
    async fn start(&mut self) {
        let info = self.connection.wait_for_connection_metadata().await;
        self.start = info.as_ref().and_then(|info| {
            let received = ReceivedBytes::of(info)?;
            let count = received.count();
            Some((received, count))
        });
    }

    /// Keeps further requests from a connection that has received nothing since it was chosen.
    fn retire_if_silent(&self) {
        let is_silent = self.start.as_ref().is_some_and(|(received, count)| received.count() == *count);
        if let (true, Some(info)) = (is_silent, &*self.connection.connection_metadata()) {
            info.poison();
        }
    }
}

impl From<hyper_util::client::legacy::Error> for TransportError {
    fn from(error: hyper_util::client::legacy::Error) -> Self {
        let source = std::error::Error::source(&error);
        let cause = source.and_then(|source| source.downcast_ref::<hyper::Error>());
        if error.is_connect() {
            Self::Connect(error.into())
        } else if source.is_none() || cause.is_some_and(hyper::Error::is_user) {
            // Whatever a connection or a server does wrong has a source.
            Self::Invalid(error.into())
        } else {
            Self::Lost(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_testkit::server::AcceptLoop;
    use tidegate_testkit::wait::soon;

    use super::*;

    #[tokio::test]
    async fn http2_connection_without_replies_to_pings_is_lost_before_the_timeout() {
        // It reads nothing after the preface, so it replies to no ping.
        let server = AcceptLoop::start(|_, stream| async move {
            let _stream = stream;
            std::future::pending::<()>().await;
        })
        .await;
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ));
        let tls = tls.with_safe_default_protocol_versions().unwrap();
        let millis = Duration::from_millis;
        let transport = PooledTransport::new(ConnectionSettings {
            tls: tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth(),
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(5),
            http2_only: true,
            http2_pings: Http2Pings { interval: millis(20), timeout: millis(20) },
        });
        let request = Request::get(server.url()).body(SendBody::empty()).unwrap();
        let error =
            soon(transport.send(request, Duration::from_secs(15), ConnectionChoice::Any)).await.unwrap_err();
        assert!(matches!(error, TransportError::Lost(_)), "{error:?}");
    }
}
