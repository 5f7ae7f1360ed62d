//! HTTP/1.1 and HTTP/2 clients of hyper and h2.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body::Body;
use hyper::client::conn::{http1 as hyper_http1, http2 as hyper_http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::wait::within;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

async fn connect(address: SocketAddr) -> TcpStream {
    within("connecting", TcpStream::connect(address)).await.expect("a connection")
}

/// A new connection of hyper's HTTP/1.1 client.
pub async fn http1<B>(address: SocketAddr) -> hyper_http1::SendRequest<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let stream = TokioIo::new(connect(address).await);
    let (sender, connection) = within("a handshake", hyper_http1::handshake(stream)).await.expect("HTTP/1.1");
    tokio::spawn(connection);
    sender
}

/// A new connection of hyper's HTTP/2 client, without TLS.
pub async fn http2<B>(address: SocketAddr) -> hyper_http2::SendRequest<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let stream = TokioIo::new(connect(address).await);
    let handshake = hyper_http2::handshake(TokioExecutor::new(), stream);
    let (sender, connection) = within("a handshake", handshake).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// How an h2 connection ended.
type ConnectionTask = JoinHandle<Result<(), h2::Error>>;

/// A new HTTP/2 connection whose streams, resets and windows a test controls, and the task that drives it.
pub async fn http2_streams(address: SocketAddr) -> (h2::client::SendRequest<Bytes>, ConnectionTask) {
    http2_over(connect(address).await).await
}

/// The same over a stream that is connected, such as one of TLS.
pub async fn http2_over<S>(stream: S) -> (h2::client::SendRequest<Bytes>, ConnectionTask)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (client, connection) = within("a handshake", h2::client::handshake(stream)).await.expect("HTTP/2");
    (client, tokio::spawn(connection))
}
