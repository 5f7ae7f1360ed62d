//! Sends one request over a connection.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::body::SendBody;
use crate::error::BoxError;

/// The body of a response as the transport delivers it.
pub(crate) type TransportBody = UnsyncBoxBody<Bytes, BoxError>;

/// A request in progress.
pub(crate) type TransportFuture =
    Pin<Box<dyn Future<Output = Result<Response<TransportBody>, TransportError>> + Send>>;

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum TransportError {
    /// No connection was made, so nothing was sent.
    Connect(BoxError),
    /// The connection broke.
    Lost(BoxError),
    /// The request body failed.
    Upload(BoxError),
    /// The request cannot be sent over any connection.
    Invalid(BoxError),
}

/// Sends one request, without any policy.
pub(crate) trait HttpTransport: fmt::Debug + Send + Sync {
    fn send(&self, request: Request<SendBody>) -> TransportFuture;
}

/// Pooled HTTP/1.1 and HTTP/2 connections, with TLS for `https`.
#[derive(Clone, Debug)]
pub(crate) struct PooledTransport {
    client: HyperClient<HttpsConnector<HttpConnector>, SendBody>,
}

/// How connections are made.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSettings {
    pub(crate) tls: rustls::ClientConfig,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) http2_only: bool,
}

impl PooledTransport {
    pub(crate) fn new(settings: ConnectionSettings) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(settings.connect_timeout));
        // ALPN chooses the version over TLS.
        let tls = HttpsConnectorBuilder::new().with_tls_config(settings.tls).https_or_http();
        let connector = if settings.http2_only {
            tls.enable_http2().wrap_connector(tcp)
        } else {
            tls.enable_all_versions().wrap_connector(tcp)
        };
        let client = HyperClient::builder(TokioExecutor::new())
            .pool_idle_timeout(settings.idle_timeout)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http2_only(settings.http2_only)
            .build(connector);
        Self { client }
    }
}

impl HttpTransport for PooledTransport {
    fn send(&self, request: Request<SendBody>) -> TransportFuture {
        let failure = request.body().failure();
        let response = self.client.request(request);
        Box::pin(async move {
            let response =
                response.await.map_err(|error| match failure.and_then(|failure| failure.take()) {
                    Some(source) => TransportError::Upload(source),
                    None => error.into(),
                })?;
            Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
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
