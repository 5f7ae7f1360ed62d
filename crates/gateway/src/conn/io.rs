//! The bytes of a client's connection: [`ClientSocket`] below TLS, [`TrackedIo`] between TLS and HTTP.
//!
//! Both record in the connection's [`Activity`] what moves. What the socket accepts can be seen only below TLS, which
//! accepts more and buffers it.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;
use super::lingering_close::LingeringClose;
use super::unparsable::BareResponse;

/// How many bytes are read before HTTP takes over: the head of most requests.
const AHEAD: usize = 1024;
/// Up to this size copying the pieces of a write costs less than a vectored system call.
const SMALL: usize = 2048;

/// A client's socket. It records what the system accepts, and when it accepts no more.
#[derive(Debug)]
pub(crate) struct ClientSocket<T> {
    inner: T,
    activity: Arc<Activity>,
}

impl<T> ClientSocket<T> {
    pub(crate) fn new(inner: T, activity: Arc<Activity>) -> Self {
        Self { inner, activity }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ClientSocket<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ClientSocket<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.activity.socket_wrote(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, bufs);
        this.activity.socket_wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// A connection as HTTP sees it. It records what is read and written, withholds hyper's own error responses, and
/// closes without losing the last response.
#[derive(Debug)]
pub(crate) struct TrackedIo<T> {
    inner: T,
    activity: Arc<Activity>,
    /// Bytes that were read ahead and are returned by the next reads.
    unread: Bytes,
    /// The response that hyper wrote to a head that it cannot parse.
    withheld: Option<BareResponse>,
    /// Set once our side of the connection is closed and the client may still be sending.
    linger: Option<Box<LingeringClose>>,
}

impl<T> TrackedIo<T> {
    pub(crate) fn new(inner: T, activity: Arc<Activity>) -> Self {
        Self { inner, activity, unread: Bytes::new(), withheld: None, linger: None }
    }

    /// Puts back what was read with an earlier request. It is the start of a head.
    pub(super) fn unread(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.activity.head_was_buffered();
        }
        self.unread = bytes;
    }

    /// What was read ahead.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.unread
    }

    /// Whether what was read ahead and what follows may start with `prefix`.
    pub(super) fn may_start_with(&self, prefix: &[u8]) -> bool {
        let length = self.unread.len().min(prefix.len());
        self.unread[..length] == prefix[..length]
    }

    /// The response that hyper wrote to a head that it cannot parse, if there was one. The caller answers instead.
    pub(super) fn take_withheld(&mut self) -> Option<BareResponse> {
        let withheld = self.withheld.take();
        if withheld.is_some() {
            self.activity.rejection_was_taken();
        }
        withheld
    }

    /// Takes hyper's own error response out of what is written, and returns its length. hyper writes it whole and by
    /// itself, or before the rest of an earlier response, which must not be torn apart.
    fn withhold(&mut self, written: &[u8]) -> Option<usize> {
        if !self.activity.is_write_unsolicited() {
            return None;
        }
        self.withheld = Some(BareResponse::parse(written)?);
        self.activity.head_was_rejected();
        Some(written.len())
    }

    fn record_write(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(1..)) = written {
            self.activity.http_wrote();
        }
    }
}

impl<T: AsyncRead + Unpin> TrackedIo<T> {
    /// Reads some bytes ahead, which the next reads return. At the end of the stream their number is 0.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut bytes = [MaybeUninit::uninit(); AHEAD];
        let mut read = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
        let read = read.filled();
        if !read.is_empty() {
            self.activity.bytes_received();
        }
        self.unread = if self.unread.is_empty() {
            Bytes::copy_from_slice(read)
        } else {
            Bytes::from([&self.unread[..], read].concat())
        };
        Poll::Ready(Ok(read.len()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TrackedIo<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.unread.is_empty() {
            let length = this.unread.len().min(buf.remaining());
            buf.put_slice(&this.unread.split_to(length));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.activity.bytes_received();
        }
        read
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TrackedIo<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(withheld) = this.withhold(buf) {
            return Poll::Ready(Ok(withheld));
        }
        let written = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.record_write(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(withheld) = bufs.first().and_then(|first| this.withhold(first)) {
            return Poll::Ready(Ok(withheld));
        }
        let written = poll_write_joined(Pin::new(&mut this.inner), cx, bufs);
        this.record_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.withheld.is_some() {
            // The task that polls hyper sees that a head could not be parsed, and takes the connection back to answer it.
            return Poll::Pending;
        }
        let linger = if let Some(linger) = &mut this.linger {
            linger
        } else {
            ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
            if !this.activity.may_still_send() {
                return Poll::Ready(Ok(()));
            }
            this.activity.linger_started();
            this.linger.insert(Box::new(LingeringClose::new()))
        };
        linger.poll(Pin::new(&mut this.inner), cx).map(Ok)
    }
}

/// Writes `pieces`, in one piece if they are small: a head and a short body leave by the cheapest system call.
pub(crate) fn poll_write_joined(
    stream: Pin<&mut impl AsyncWrite>,
    cx: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [piece] = pieces {
        return stream.poll_write(cx, piece);
    }
    if pieces.iter().map(|piece| piece.len()).sum::<usize>() > SMALL {
        return stream.poll_write_vectored(cx, pieces);
    }
    let mut joined = SmallVec::<[u8; SMALL]>::new();
    for piece in pieces {
        joined.extend_from_slice(piece);
    }
    stream.poll_write(cx, &joined)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const BARE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\
                          date: Sun, 16 Nov 2025 02:27:20 GMT\r\n\r\n";

    #[tokio::test]
    async fn answer_of_http_before_the_rest_of_a_response_is_withheld_and_the_rest_is_written() {
        let (mut client, server) = duplex(1 << 10);
        let mut stream = TrackedIo::new(server, Arc::new(Activity::default()));
        let slices = [IoSlice::new(BARE), IoSlice::new(b"the rest")];
        let written = poll_fn(|cx| Pin::new(&mut stream).poll_write_vectored(cx, &slices)).await.unwrap();
        assert_eq!(written, BARE.len(), "only the first is taken out");
        stream.write_all(b"the rest").await.unwrap();
        assert!(stream.take_withheld().is_some() && stream.take_withheld().is_none());
        drop(stream);
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"the rest");
    }

    #[tokio::test]
    async fn response_of_a_service_is_written_whatever_it_looks_like() {
        let (mut client, server) = duplex(1 << 10);
        let activity = Arc::new(Activity::default());
        let mut stream = TrackedIo::new(server, Arc::clone(&activity));
        drop(activity.begin_request(false));
        activity.response_was_returned();
        stream.write_all(BARE).await.unwrap();
        assert!(stream.take_withheld().is_none());
        drop(stream);
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, BARE);
    }

    #[test]
    fn bytes_that_came_with_an_earlier_request_keep_the_connection_from_being_parked() {
        let activity = Arc::new(Activity::default());
        let mut stream = TrackedIo::new((), Arc::clone(&activity));
        stream.unread(Bytes::new());
        assert!(activity.is_between_requests());
        stream.unread(Bytes::from_static(b"GET "));
        assert!(!activity.is_between_requests());
    }
}
