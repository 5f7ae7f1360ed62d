//! Byte streams to servers.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::abandon::{ServerSocket, SocketHandoff};
use super::response_chunks::ResponseChunks;
use super::server::UpstreamConnCount;
use crate::conn::poll_write_joined;

/// The most that one read returns if many responses may wait for one client. hyper enlarges its buffers while reads fill them,
/// and each holds its memory as long as any of its bytes is not forwarded: this way they stay at 16 KiB.
const MAX_READ: u64 = (16 << 10) - 1;

/// A connection owned by hyper. When hyper drops it, the socket goes to the [`SocketHandoff`].
#[derive(Debug)]
pub(super) struct HyperIo {
    /// `None` only while it is dropped.
    socket: Option<ServerSocket>,
    handoff: Arc<SocketHandoff>,
    /// Set for HTTP/1. A server may respond and close before it has read the whole request. hyper would not read that
    /// response after a failed write, so failed writes are reported as successful; the next read returns the end.
    ignores_write_errors: bool,
    /// `None` for HTTP/2.
    chunks: Option<ResponseChunks>,
}

impl HyperIo {
    pub(super) fn new(stream: UpstreamStream, count: UpstreamConnCount, is_http2: bool) -> Self {
        let socket = Some(ServerSocket { stream, count });
        let chunks = (!is_http2).then(ResponseChunks::new);
        Self { socket, handoff: Arc::default(), ignores_write_errors: !is_http2, chunks }
    }

    pub(super) fn handoff(&self) -> Arc<SocketHandoff> {
        Arc::clone(&self.handoff)
    }

    fn stream(&mut self) -> io::Result<Pin<&mut UpstreamStream>> {
        let socket = self.socket.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Pin::new(&mut socket.stream))
    }

    fn after_write(&self, written: Poll<io::Result<usize>>, length: usize) -> Poll<io::Result<usize>> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        match written {
            Poll::Ready(Err(error))
                if self.ignores_write_errors && matches!(error.kind(), BrokenPipe | ConnectionReset) =>
            {
                Poll::Ready(Ok(length))
            }
            written => written,
        }
    }
}

impl Drop for HyperIo {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.handoff.connection_ended(socket);
        }
    }
}

impl AsyncRead for HyperIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (this, filled) = (self.get_mut(), buf.filled().len());
        let is_small = this.chunks.is_none() || this.handoff.has_small_reads();
        let stream = this.stream()?;
        if is_small {
            ready!(pin!(stream.take(MAX_READ)).poll_read(cx, buf))?;
        } else {
            ready!(stream.poll_read(cx, buf))?;
        }
        let received = &buf.filled()[filled..];
        if !received.is_empty() {
            let is_first = this.handoff.record_read();
            if let Some(chunks) = &mut this.chunks {
                if is_first {
                    *chunks = ResponseChunks::new();
                }
                chunks.check(received)?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for HyperIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.stream()?.poll_write(cx, buf);
        this.after_write(written, buf.len())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.stream()?.poll_write_vectored(cx, bufs);
        this.after_write(written, bufs.iter().map(|buf| buf.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream()?.poll_shutdown(cx)
    }
}

/// A connection with or without TLS.
#[derive(Debug)]
pub(crate) enum UpstreamStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Replay(Box<ReplayIo>),
}

impl UpstreamStream {
    /// The plain stream, without replayed bytes.
    pub(super) fn without_replay(self) -> Self {
        match self {
            Self::Replay(replay) => Self::Plain(replay.stream),
            stream => stream,
        }
    }
}

/// A connection on which the fast path has sent a request and read part of the response. hyper's first write, the same
/// request, is discarded; reads replay the bytes that were read.
#[derive(Debug)]
pub(crate) struct ReplayIo {
    stream: TcpStream,
    read: Bytes,
    has_written: bool,
    /// Woken by the first write.
    reader: Option<Waker>,
}

impl ReplayIo {
    pub(super) fn new(stream: TcpStream, read: Bytes) -> Self {
        Self { stream, read, has_written: false, reader: None }
    }

    /// Discards the first write: it is the complete request, which was sent before.
    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.has_written {
            return poll_write_joined(Pin::new(&mut self.stream), cx, bufs);
        }
        self.has_written = true;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.has_written {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let length = self.read.len().min(buf.remaining());
        buf.put_slice(&self.read.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Replay(replay) => replay.poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Replay(replay) => replay.poll_write(cx, &[IoSlice::new(buf)]),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Replay(replay) => Pin::new(&mut replay.stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Replay(replay) => Pin::new(&mut replay.stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => poll_write_joined(Pin::new(stream), cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Replay(replay) => replay.poll_write(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Replay(replay) => replay.stream.is_write_vectored(),
        }
    }
}
