//! A server that responds with the result of a function, over HTTP/1.1 and HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::AcceptLoop;
use crate::port::ANY;

/// A body of any kind.
pub type AnyBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// A complete body.
pub fn full(text: impl Into<Bytes>) -> AnyBody {
    Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// A server that responds with the result of a function. It supports HTTP/1.1 and HTTP/2.
#[derive(Debug)]
pub struct HttpServer {
    /// Where it listens.
    pub address: SocketAddr,
    accepting: AcceptLoop,
    requested: watch::Receiver<bool>,
}

impl HttpServer {
    /// Listens at a free port.
    pub async fn start<F, A>(respond: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
        A: Future<Output = Response<AnyBody>> + Send + 'static,
    {
        Self::start_at(ANY, respond).await
    }

    /// Listens at this address.
    pub async fn start_at<F, A>(address: SocketAddr, respond: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
        A: Future<Output = Response<AnyBody>> + Send + 'static,
    {
        let (sender, requested) = watch::channel(false);
        let accepting = AcceptLoop::start_at(address, move |_, stream| {
            let (respond, sender) = (respond.clone(), sender.clone());
            let service = service_fn(move |request| {
                sender.send_replace(true);
                let respond = respond(request);
                async move { Ok::<_, Infallible>(respond.await) }
            });
            async move {
                let http = auto::Builder::new(TokioExecutor::new());
                // How the connection ends does not matter here.
                let _ = http.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
            }
        })
        .await;
        Self { address: accepting.address, accepting, requested }
    }

    /// Responds with the headers of the request, one per line.
    pub async fn echo_headers() -> Self {
        Self::start(|request: Request<Incoming>| async move {
            let headers = request.headers().iter().map(|(name, value)| format!("{name}: {value:?}\n"));
            Response::new(full(headers.collect::<Vec<_>>().concat()))
        })
        .await
    }

    /// Responds to every request with `name`.
    pub async fn named(name: &'static str) -> Self {
        Self::start(move |_| async move { Response::new(full(name)) }).await
    }

    /// Waits for the first request.
    pub async fn first_request(&self) {
        self.requested.clone().wait_for(|requested| *requested).await.expect("a running server");
    }

    /// Closes the listener and every connection.
    pub async fn close(self) {
        self.accepting.close().await;
    }

    /// Its URL for HTTP/1.1.
    pub fn url(&self) -> String {
        self.accepting.url()
    }

    /// Its URL for HTTP/2 without TLS.
    pub fn h2c(&self) -> String {
        self.accepting.h2c()
    }
}

/// A TLS server in a thread of its own that responds with the version of HTTP and the host of a request.
pub fn tls_server(config: Arc<ServerConfig>) -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let tls = TlsAcceptor::from(config);
    let accepting = runtime.block_on(AcceptLoop::start(move |_, stream| {
        let tls = tls.clone();
        async move {
            // A failed handshake does not matter here.
            let Ok(stream) = tls.accept(stream).await else { return };
            let http = auto::Builder::new(TokioExecutor::new());
            let _ = http.serve_connection(TokioIo::new(stream), service_fn(version_and_host)).await;
        }
    }));
    let address = accepting.address;
    std::thread::spawn(move || {
        runtime.block_on(std::future::pending::<()>());
        drop(accepting);
    });
    address
}

async fn version_and_host(request: Request<Incoming>) -> Result<Response<AnyBody>, Infallible> {
    let host = request.headers().get("host").and_then(|host| host.to_str().ok());
    let host = host.or(request.uri().host()).unwrap_or_default();
    Ok(Response::new(full(format!("{:?} {host}", request.version()))))
}
