//! Connections that count what they receive.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http::{Extensions, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tower_service::Service;

/// Makes connections that count what they receive.
#[derive(Clone, Debug)]
pub(crate) struct WatchedConnector<C>(pub(crate) C);

/// How often a connection has received bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedBytes(Arc<AtomicU64>);

impl ReceivedBytes {
    /// Those of a connection that a [`WatchedConnector`] has made.
    pub(crate) fn of(connection: &Connected) -> Option<Self> {
        let mut extensions = Extensions::new();
        connection.get_extras(&mut extensions);
        extensions.remove()
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<C> Service<Uri> for WatchedConnector<C>
where
    C: Service<Uri, Future: Send + 'static>,
{
    type Response = WatchedIo<C::Response>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, C::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let connecting = self.0.call(url);
        Box::pin(async move { Ok(WatchedIo { io: connecting.await?, received: ReceivedBytes::default() }) })
    }
}

/// A connection that counts what it receives.
pub(crate) struct WatchedIo<T> {
    io: T,
    received: ReceivedBytes,
}

impl<T: Connection> Connection for WatchedIo<T> {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.received.clone())
    }
}

impl<T: Read + Unpin> Read for WatchedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        if read.is_ready() {
            // The end of the connection counts too: such a connection is retired anyway.
            self.received.0.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl<T: Write + Unpin> Write for WatchedIo<T> {
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
