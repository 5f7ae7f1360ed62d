//! The byte streams of a client connection: [`ClientSocket`] below TLS, [`TrackedIo`] between TLS and HTTP.
//!
//! Both record traffic in the connection's [`Activity`]. What the socket accepts is visible only below TLS, since TLS
//! buffers.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use smallvec::SmallVec;
use tidegate_listener::{BodyLength, RequestFraming};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::activity::{Activity, HangupWatch};
use super::lingering_close::LingeringClose;
use super::unparsable::BareResponse;

/// The largest read of a head into a larger buffer than this, unless a body is expected with it; most heads fit.
const HEAD_READ: u64 = 1 << 10;
const MAX_HEAD_BUFFER: usize = 8 << 10;
/// Bytes that are read before hyper takes over; most heads fit.
const AHEAD: usize = 1024;
/// Up to this size, copying the slices of a write costs less than a vectored system call.
const SMALL: usize = 2048;

/// A client's socket. It records how many bytes the kernel accepts, and whether it is full.
#[derive(Debug)]
pub(crate) struct ClientSocket<T> {
    inner: T,
    activity: Arc<Activity>,
    /// The socket again, with a readiness of its own: hyper reads nothing while a request waits, so the other is not polled.
    hangup: Option<Box<TcpStream>>,
}

impl<T> ClientSocket<T> {
    pub(crate) fn new(inner: T, activity: Arc<Activity>) -> Self {
        Self { inner, activity, hangup: None }
    }
}

/// A socket of which there can be a copy with a readiness of its own.
pub(crate) trait CopySocket {
    fn copy(&self) -> io::Result<TcpStream>;
}

impl CopySocket for TcpStream {
    fn copy(&self) -> io::Result<TcpStream> {
        Self::from_std(self.as_fd().try_clone_to_owned()?.into())
    }
}

impl<T: CopySocket> ClientSocket<T> {
    /// Watches for the client's disconnect while a request waits. It is an error, so that hyper drops the request.
    #[cold]
    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.activity.hangup_watch() != HangupWatch::On {
            self.hangup = None;
            self.activity.set_hangup_watch(HangupWatch::Off);
            return Ok(());
        }
        let socket = match &mut self.hangup {
            Some(socket) => socket,
            none => {
                // Without a file descriptor the disconnect is noticed later.
                let Ok(copy) = self.inner.copy() else { return Ok(()) };
                none.insert(Box::new(copy))
            }
        };
        while socket.poll_read_ready(cx)?.is_ready() {
            if let Poll::Ready(ready) = pin!(socket.ready(Interest::READABLE)).poll(cx)
                && ready?.is_read_closed()
            {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            // What has arrived stays unread; the next event is of interest.
            let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
        }
        Ok(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ClientSocket<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + CopySocket + Unpin> AsyncWrite for ClientSocket<T> {
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

    /// hyper flushes whenever it has polled the request.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.activity.hangup_watch() != HangupWatch::Off {
            this.poll_hangup(cx)?;
        }
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// A connection as HTTP sees it. It records what is read and written, checks chunked bodies, withholds hyper's own error
/// responses, and closes without losing the last response.
#[derive(Debug)]
pub(crate) struct TrackedIo<T> {
    inner: T,
    activity: Arc<Activity>,
    /// Bytes that were read ahead; the next reads return them.
    unread: Bytes,
    framing: RequestFraming,
    /// What last followed a head in the same read was passed with it.
    expects_body: bool,
    /// The maximum size of a request body.
    max_body: u64,
    /// The response that hyper wrote to a head that it cannot parse.
    withheld: Option<BareResponse>,
    /// Set once our side of the connection is closed and the client may still be sending.
    linger: Option<Box<LingeringClose>>,
}

impl<T> TrackedIo<T> {
    pub(crate) fn new(inner: T, activity: Arc<Activity>, max_body: u64) -> Self {
        let (unread, framing) = (Bytes::new(), RequestFraming::START);
        Self { inner, activity, unread, framing, expects_body: false, max_body, withheld: None, linger: None }
    }

    /// Puts back bytes that hyper has read and not used. They start a head.
    pub(super) fn put_back(&mut self, bytes: Bytes) {
        self.framing = RequestFraming::START;
        // The body before them was passed with its head.
        self.activity.take_body_length();
        if self.unread.is_empty() {
            self.unread = bytes;
        } else if !bytes.is_empty() {
            self.unread = Bytes::from([&bytes[..], &self.unread].concat());
        }
        if !self.unread.is_empty() {
            self.activity.head_was_buffered();
        }
    }

    /// From now on the client does not send HTTP/1.1.
    pub(super) fn end_http1(&mut self) {
        self.framing.begin_body(BodyLength::ENDLESS, self.max_body);
    }

    /// The bytes that were read ahead.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.unread
    }

    /// Whether the input may start with `prefix`, judged by the bytes read ahead.
    pub(super) fn may_start_with(&self, prefix: &[u8]) -> bool {
        let length = self.unread.len().min(prefix.len());
        self.unread[..length] == prefix[..length]
    }

    /// Takes the response that hyper wrote to a head that it cannot parse. The caller responds instead.
    pub(super) fn take_withheld(&mut self) -> Option<BareResponse> {
        let withheld = self.withheld.take();
        if withheld.is_some() {
            self.activity.rejection_was_taken();
        }
        withheld
    }

    /// Withholds `written` if it is an error response of hyper itself, and returns its length. hyper writes such a response
    /// as one slice, possibly before the rest of an earlier response, which must be written unchanged.
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
    /// Reads bytes ahead, which the next reads return. Returns their number, 0 at the end of the stream.
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
        if let Some(length) = this.activity.take_body_length() {
            this.framing.begin_body(length, this.max_body);
        }
        if this.unread.is_empty() {
            return this.poll_socket(cx, buf);
        }
        this.activity.head_was_buffered();
        let most = this.unread.len().min(buf.remaining());
        let length = this.framing.pass(&this.unread[..most])?;
        buf.put_slice(&this.unread.split_to(length));
        this.record_ahead();
        // hyper forwards each read on its own: the rest of a body goes with the part that came with its head.
        if this.unread.is_empty()
            && this.framing.is_known_body()
            && let Poll::Ready(Err(error)) = this.poll_socket(cx, buf)
        {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> TrackedIo<T> {
    /// Reads from the client what hyper may have now.
    fn poll_socket(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        // What follows a head in the same read and is not passed with it is copied, so it should not be much. hyper's buffer grows
        // with long bodies.
        if self.framing.is_head() && !self.expects_body && buf.remaining() > MAX_HEAD_BUFFER {
            ready!(Pin::new(&mut (&mut self.inner).take(HEAD_READ)).poll_read(cx, buf))?;
        } else {
            ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        }
        let read = &buf.filled()[before..];
        if !read.is_empty() {
            self.activity.bytes_received();
            let length = self.framing.pass(read)?;
            if length < read.len() {
                self.expects_body = false;
                self.unread = Bytes::copy_from_slice(&read[length..]);
                buf.set_filled(before + length);
            } else if self.framing.passed_with_head() > 0 {
                self.expects_body = true;
            }
            self.record_ahead();
        }
        Poll::Ready(Ok(()))
    }

    /// Records what was received after the last head.
    fn record_ahead(&self) {
        self.activity.set_ahead(self.unread.len() as u64 + self.framing.passed_with_head());
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
            // The task that polls hyper notices the unparsable head, takes the connection back and responds.
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

/// Writes `slices`, joined if they are small: a head and a short body then need one plain system call.
pub(crate) fn poll_write_joined(
    stream: Pin<&mut impl AsyncWrite>,
    cx: &mut Context<'_>,
    slices: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [slice] = slices {
        return stream.poll_write(cx, slice);
    }
    if slices.iter().map(|slice| slice.len()).sum::<usize>() > SMALL {
        return stream.poll_write_vectored(cx, slices);
    }
    let mut joined = SmallVec::<[u8; SMALL]>::new();
    for slice in slices {
        joined.extend_from_slice(slice);
    }
    stream.poll_write(cx, &joined)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    impl CopySocket for DuplexStream {
        fn copy(&self) -> io::Result<TcpStream> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    const BARE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\
                          date: Sun, 16 Nov 2025 02:27:20 GMT\r\n\r\n";

    #[tokio::test]
    async fn tracked_io_hyper_error_before_rest_of_response_is_withheld_and_the_rest_written() {
        let (mut client, server) = duplex(1 << 10);
        let mut stream = TrackedIo::new(server, Arc::new(Activity::default()), 0);
        let slices = [IoSlice::new(BARE), IoSlice::new(b"the rest")];
        let written = poll_fn(|cx| Pin::new(&mut stream).poll_write_vectored(cx, &slices)).await.unwrap();
        assert_eq!(written, BARE.len(), "only the first slice is withheld");
        stream.write_all(b"the rest").await.unwrap();
        assert!(stream.take_withheld().is_some() && stream.take_withheld().is_none());
        drop(stream);
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"the rest");
    }

    #[tokio::test]
    async fn tracked_io_service_response_that_looks_like_hyper_error_is_written() {
        let (mut client, server) = duplex(1 << 10);
        let activity = Arc::new(Activity::default());
        let mut stream = TrackedIo::new(server, Arc::clone(&activity), 0);
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
    fn tracked_io_bytes_put_back_prevent_parking() {
        let activity = Arc::new(Activity::default());
        let mut stream = TrackedIo::new((), Arc::clone(&activity), 0);
        stream.put_back(Bytes::new());
        assert!(activity.is_between_requests());
        stream.put_back(Bytes::from_static(b"GET "));
        assert!(!activity.is_between_requests());
    }

    #[tokio::test]
    async fn tracked_io_report_of_a_body_before_bytes_put_back_is_not_applied_to_them() {
        let body = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
        let activity = Arc::new(Activity::default());
        let mut stream = TrackedIo::new(&body[..], Arc::clone(&activity), 10);
        let mut buffer = [0; 100];
        assert_eq!(stream.read(&mut buffer).await.unwrap(), body.len());
        assert_eq!(activity.ahead(), 3);
        activity.body_follows(BodyLength::Known(3));
        let next = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.put_back(Bytes::from([&next[..], b"3\r\nabc"].concat()));
        assert_eq!(stream.read(&mut buffer).await.unwrap(), next.len(), "the chunks are withheld");
    }
}
