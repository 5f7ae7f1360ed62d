//! Connections that know what they receive.
//!
//! A connection over which nothing arrives may be dead. One over which much arrives, but no head and no body of a response,
//! is flooded: with informational responses (1xx), pings or whatever else costs the client time and says nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http::{Extensions, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower_service::Service;

/// A connection that receives more than this without any part of a response is closed. It is several times what an HTTP/2
/// connection may receive before callers read it.
const MAX_WITHOUT_RESPONSE: u64 = 16 << 20;

/// Makes connections that know what they receive.
#[derive(Clone, Debug)]
pub(crate) struct WatchedConnector<C>(pub(crate) C);

/// The bytes that a connection has received.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedBytes(Arc<ReceivedCounts>);

#[derive(Debug, Default)]
struct ReceivedCounts {
    all: AtomicU64,
    /// All bytes when the last part of a response was delivered.
    at_last_part: AtomicU64,
}

impl ReceivedBytes {
    /// Those of a connection that a [`WatchedConnector`] has made.
    pub(crate) fn of(connection: &Connected) -> Option<Self> {
        let mut extensions = Extensions::new();
        connection.get_extras(&mut extensions);
        extensions.remove()
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.all.load(Ordering::Relaxed)
    }

    /// A part of a response was delivered.
    pub(crate) fn mark_part(&self) {
        self.0.at_last_part.store(self.count(), Ordering::Relaxed);
    }

    /// Counts further bytes. Returns whether they are too many without a part of a response.
    fn add(&self, bytes: usize) -> bool {
        let all = self.0.all.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        all.saturating_sub(self.0.at_last_part.load(Ordering::Relaxed)) > MAX_WITHOUT_RESPONSE
    }
}

impl<C> Service<Uri> for WatchedConnector<C>
where
    C: Service<Uri, Future: Send + 'static>,
{
    type Response = TokioIo<WatchedIo<TokioIo<C::Response>>>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, C::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let connecting = self.0.call(url);
        Box::pin(async move {
            let io = TokioIo::new(connecting.await?);
            Ok(TokioIo::new(WatchedIo { io, received: ReceivedBytes::default() }))
        })
    }
}

/// A connection that knows what it receives.
pub(crate) struct WatchedIo<T> {
    io: T,
    received: ReceivedBytes,
}

impl<T: Connection> Connection for WatchedIo<T> {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.received.clone())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WatchedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 && self.received.add(bytes) {
            return Poll::Ready(Err(io::Error::other("the server sends much and no response")));
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WatchedIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}
