//! The upstream of the built-in demo.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::Context;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// Starts the demo upstream on a free loopback port, in its own thread.
pub(crate) fn start() -> anyhow::Result<SocketAddr> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener =
        runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).context("cannot start the demo upstream")?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("demo".to_owned()).spawn(move || {
        runtime.block_on(async {
            while let Ok((stream, _)) = listener.accept().await {
                let serving =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond));
                tokio::spawn(serving);
            }
        });
    })?;
    Ok(address)
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = format!("Hello from the demo upstream: {} {}\n", request.method(), request.uri().path());
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}
