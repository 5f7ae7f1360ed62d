//! A client's connection as HTTP sees it: it notes what comes, and ends without losing an answer.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::conn::activity::Activity;
use crate::conn::coalesce::poll_write_joined;
use crate::conn::lingering_close::Linger;
use crate::conn::unparsable::BareAnswer;

/// So much is read ahead of HTTP: the head of most requests.
const AHEAD: usize = 1024;

/// A connection that notes what moves.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    inner: T,
    activity: Arc<Activity>,
    /// What was read and belongs to whoever reads next.
    unread: Bytes,
    /// What HTTP would have answered to a head that it cannot parse.
    withheld: Option<BareAnswer>,
    /// Set once our side has ended.
    linger: Option<Box<Linger>>,
}

impl<T> Watched<T> {
    pub(crate) fn new(inner: T, activity: Arc<Activity>) -> Self {
        Self { inner, activity, unread: Bytes::new(), withheld: None, linger: None }
    }

    /// Gives back what was read too early. It begins a head.
    pub(crate) fn unread(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.activity.begin_head();
        }
        self.unread = bytes;
    }

    /// What was heard and nobody has read.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.unread
    }

    /// Whether what was heard and what follows may begin so.
    pub(crate) fn may_begin(&self, with: &[u8]) -> bool {
        let length = self.unread.len().min(with.len());
        self.unread[..length] == with[..length]
    }

    /// What HTTP would have answered to a head that it cannot parse, if there was one. Whoever takes it answers.
    pub(crate) fn take_withheld(&mut self) -> Option<BareAnswer> {
        let withheld = self.withheld.take();
        if withheld.is_some() {
            self.activity.answer_rejected_head();
        }
        withheld
    }

    fn heard(&self, something: bool) {
        if something {
            self.activity.heard();
        }
    }

    /// Takes the answer that HTTP writes by itself out of what is written, and says how long it is. It is written
    /// whole and by itself, or before what is left of an earlier response, which must not be torn apart.
    fn withhold(&mut self, written: &[u8]) -> Option<usize> {
        if !self.activity.is_write_unasked() {
            return None;
        }
        self.withheld = Some(BareAnswer::parse(written)?);
        self.activity.reject_head();
        Some(written.len())
    }

    fn note_write(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(1..)) = written {
            self.activity.wrote_head();
        }
    }
}

impl<T: AsyncRead + Unpin> Watched<T> {
    /// Reads a little ahead; whoever reads next gets it. At the end it is nothing.
    pub(crate) fn poll_hear(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut bytes = [MaybeUninit::uninit(); AHEAD];
        let mut heard = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut heard))?;
        let heard = heard.filled();
        self.heard(!heard.is_empty());
        self.unread = if self.unread.is_empty() {
            Bytes::copy_from_slice(heard)
        } else {
            Bytes::from([&self.unread[..], heard].concat())
        };
        Poll::Ready(Ok(heard.len()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.unread.is_empty() {
            let length = this.unread.len().min(buf.remaining());
            buf.put_slice(&this.unread.split_to(length));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(cx, buf);
        this.heard(buf.filled().len() > before);
        read
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(withheld) = this.withhold(buf) {
            return Poll::Ready(Ok(withheld));
        }
        let written = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.note_write(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(withheld) = bufs.first().and_then(|first| this.withhold(first)) {
            return Poll::Ready(Ok(withheld));
        }
        let written = poll_write_joined(Pin::new(&mut this.inner), cx, bufs);
        this.note_write(&written);
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
            // Whoever polls HTTP sees that a head could not be parsed, and takes the connection back to answer it.
            return Poll::Pending;
        }
        let linger = if let Some(linger) = &mut this.linger {
            linger
        } else {
            ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
            if !this.activity.may_still_send() {
                return Poll::Ready(Ok(()));
            }
            this.activity.part();
            this.linger.insert(Box::new(Linger::new()))
        };
        linger.poll(Pin::new(&mut this.inner), cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::IoSlice;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const BARE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\
                          date: Sun, 16 Nov 2025 02:27:20 GMT\r\n\r\n";

    #[tokio::test]
    async fn answer_of_http_before_the_rest_of_a_response_is_withheld_and_the_rest_is_written() {
        let (mut client, server) = duplex(1 << 10);
        let mut stream = Watched::new(server, Arc::new(Activity::default()));
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
        let mut stream = Watched::new(server, Arc::clone(&activity));
        drop(activity.begin(false));
        activity.owe_head();
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
        let mut stream = Watched::new((), Arc::clone(&activity));
        stream.unread(Bytes::new());
        assert!(activity.is_between_requests());
        stream.unread(Bytes::from_static(b"GET "));
        assert!(!activity.is_between_requests());
    }
}
