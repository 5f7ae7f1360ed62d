//! A byte stream that checks the framing of requests before hyper reads them.
//!
//! For servers that need no more of their connections; the gateway checks the same in its own streams.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::request_framing::{BodyLength, RequestFraming};

/// The first line of an HTTP/2 connection, and the empty line after it. No request of HTTP/1.1 begins like this.
const HTTP2_START: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";

/// The length of the next body, as hyper has found it: from the service to the stream below hyper.
#[derive(Clone, Debug)]
pub struct NextBody(Arc<AtomicU64>);

impl NextBody {
    const NONE: u64 = u64::MAX;
    const CHUNKED: u64 = u64::MAX - 1;

    /// The service has got a request over HTTP/1.1 with a body, before it reads that body. `None` if it is chunked.
    pub fn follows(&self, length: Option<u64>) {
        self.0.store(length.unwrap_or(Self::CHUNKED), Ordering::Relaxed);
    }

    fn take(&self) -> Option<BodyLength> {
        match self.0.load(Ordering::Relaxed) {
            Self::NONE => None,
            length => {
                self.0.store(Self::NONE, Ordering::Relaxed);
                Some(if length == Self::CHUNKED { BodyLength::Chunked } else { BodyLength::Known(length) })
            }
        }
    }
}

impl Default for NextBody {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(Self::NONE)))
    }
}

/// A connection as hyper sees it: it gets the bytes of a client up to the end of a head, then those of a body that was checked. A
/// malformed chunk is an error with a [`ChunkError`](crate::ChunkError).
#[derive(Debug)]
pub struct FramedIo<IO> {
    io: IO,
    /// Bytes that were read, and that hyper must not have yet.
    unread: Bytes,
    framing: RequestFraming,
    next_body: NextBody,
    /// The maximum size of a chunked body.
    max_body: u64,
}

impl<IO> FramedIo<IO> {
    /// `unread` was read before, and starts a head.
    pub fn new(io: IO, unread: Bytes, next_body: &NextBody, max_body: u64) -> Self {
        let mut framing = RequestFraming::START;
        if unread.starts_with(HTTP2_START) {
            framing.begin_body(BodyLength::ENDLESS, max_body);
        }
        Self { io, unread, framing, next_body: next_body.clone(), max_body }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for FramedIo<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(length) = this.next_body.take() {
            this.framing.begin_body(length, this.max_body);
        }
        if !this.unread.is_empty() {
            let most = this.unread.len().min(buffer.remaining());
            let length = this.framing.pass(this.unread.get(..most).unwrap_or_default())?;
            buffer.put_slice(&this.unread.split_to(length));
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        let length = this.framing.pass(read)?;
        if let Some(rest) = read.get(length..).filter(|rest| !rest.is_empty()) {
            this.unread = Bytes::copy_from_slice(rest);
            buffer.set_filled(before + length);
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for FramedIo<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    const HEAD: &[u8] = b"POST / HTTP/1.1\r\n\r\n";

    #[tokio::test]
    async fn body_is_withheld_until_its_length_is_known_and_checked_then() {
        for unread in [&b""[..], b"POST /", b"POST / HTTP/1.1\r\n\r\n3\r\na"] {
            let all = [HEAD, b"3\r\nabc\r\n0\r\n\r\n", HEAD, b"1\nx"].concat();
            let next_body = NextBody::default();
            let rest = &all[unread.len()..];
            let mut io = FramedIo::new(rest, Bytes::copy_from_slice(unread), &next_body, 10);
            let mut buffer = [0; 100];
            let mut head = Vec::new();
            while head.len() < HEAD.len() {
                let read = io.read(&mut buffer).await.unwrap();
                head.extend_from_slice(&buffer[..read]);
            }
            assert_eq!(head, HEAD);
            next_body.follows(None);
            let mut rest = Vec::new();
            let expected = &all[HEAD.len()..all.len() - 3];
            while rest.len() < expected.len() {
                let read = io.read(&mut buffer).await.unwrap();
                rest.extend_from_slice(&buffer[..read]);
            }
            assert_eq!(rest, expected, "the next head, and not what follows it");
            next_body.follows(None);
            let error = io.read(&mut buffer).await.unwrap_err();
            assert_eq!(crate::ChunkError::of(&error), Some(crate::ChunkError::Malformed));
        }
    }

    #[tokio::test]
    async fn http2_is_passed_as_it_is() {
        let unread = Bytes::from_static(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut io = FramedIo::new(&b"\r\n\r\nx"[..], unread.clone(), &NextBody::default(), 10);
        let mut buffer = [0; 100];
        assert_eq!(io.read(&mut buffer).await.unwrap(), unread.len());
        assert_eq!(io.read(&mut buffer).await.unwrap(), 5);
    }
}
