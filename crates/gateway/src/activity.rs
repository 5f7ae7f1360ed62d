//! How lively a connection is: those that only hold a place are ended.
//!
//! Nothing here reads a clock. A connection notes what moved, and every few seconds somebody looks.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::joined::poll_write_joined;
use crate::rounds::Order;

/// Looks that the head of a request may take, however lively it drips.
const HEAD: u32 = 3;
/// Looks that a client may take no byte of its answer.
const STUCK: u32 = 6;
/// Looks that a connection may be idle between requests.
const IDLE: u32 = 15;
/// So much is read ahead of HTTP: the head of most requests.
const AHEAD: usize = 1024;

/// What moved on a connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    moved: AtomicBool,
    /// Part of a request's head has come.
    begun: AtomicBool,
    /// What we write is not taken.
    blocked: AtomicBool,
    in_flight: AtomicU32,
    /// Many requests at once: heads are then the protocol's business.
    multiplexed: AtomicBool,
    /// Streams with more to send than their client has made room for; on one's own connection that is `blocked`.
    offered: AtomicU32,
    /// A stream got room.
    taken: AtomicBool,
}

impl Activity {
    /// A request's head is complete; it is in flight until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, multiplexed: bool) -> InFlight {
        self.begun.store(false, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        if multiplexed {
            self.multiplexed.store(true, Ordering::Relaxed);
        }
        InFlight(Arc::clone(self))
    }
}

/// A request that is being served.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Activity>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.0.moved.store(true, Ordering::Relaxed);
    }
}

/// A response's body. Its request is in flight until it has ended.
#[derive(Debug)]
pub(crate) struct InFlightBody<B> {
    body: B,
    in_flight: InFlight,
    is_offered: bool,
}

impl<B> InFlightBody<B> {
    pub(crate) fn new(body: B, in_flight: InFlight) -> Self {
        let mut body = Self { body, in_flight, is_offered: false };
        // It is asked for once there is room for it.
        body.set_offered(true);
        body
    }

    fn set_offered(&mut self, is_offered: bool) {
        let activity = &self.in_flight.0;
        if self.is_offered == is_offered || !activity.multiplexed.load(Ordering::Relaxed) {
            return;
        }
        self.is_offered = is_offered;
        if is_offered {
            activity.offered.fetch_add(1, Ordering::Relaxed);
        } else {
            activity.offered.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<B> Drop for InFlightBody<B> {
    fn drop(&mut self) {
        self.set_offered(false);
    }
}

impl<B: Body + Unpin> Body for InFlightBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        this.in_flight.0.taken.store(true, Ordering::Relaxed);
        // While it is the upstream that is waited for, the client owes nothing.
        this.set_offered(matches!(frame, Poll::Ready(Some(_))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Looks at a connection again and again.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    still: u32,
    head: u32,
    untaken: u32,
}

impl Watch {
    /// Whether a connection may be told to close: over HTTP/2 any time, since that loses no request; over HTTP/1.1 when
    /// nothing has moved since the last look.
    pub(crate) fn may_close(activity: &Activity) -> bool {
        let moved = activity.moved.swap(false, Ordering::Relaxed);
        let in_flight = activity.in_flight.load(Ordering::Relaxed) > 0;
        activity.multiplexed.load(Ordering::Relaxed) || (!moved && !in_flight)
    }

    /// What becomes of the connection: it has outstayed its welcome, it may rest, or nothing.
    pub(crate) fn look(&mut self, activity: &Activity) -> Order {
        let moved = activity.moved.swap(false, Ordering::Relaxed);
        self.still = if moved { 0 } else { self.still + 1 };
        let in_flight = activity.in_flight.load(Ordering::Relaxed) > 0;
        let reads_a_head = !in_flight
            && activity.begun.load(Ordering::Relaxed)
            && !activity.multiplexed.load(Ordering::Relaxed);
        self.head = if reads_a_head { self.head + 1 } else { 0 };
        let is_blocked = activity.blocked.load(Ordering::Relaxed);
        let is_taken = activity.taken.swap(false, Ordering::Relaxed);
        let is_offered = activity.offered.load(Ordering::Relaxed) > 0;
        // Pings move a connection, but take nothing.
        self.untaken = if is_offered && !is_taken && !is_blocked { self.untaken + 1 } else { 0 };
        let is_stuck = is_blocked && self.still >= STUCK || self.untaken >= STUCK;
        let is_idle = !in_flight && self.still >= IDLE;
        if self.head >= HEAD || is_stuck || is_idle {
            return Order::End;
        }
        let rests = !moved && !in_flight && !is_blocked && !activity.begun.load(Ordering::Relaxed);
        // Once is enough.
        if rests && self.still == 1 { Order::Rest } else { Order::Stay }
    }
}

/// A connection that notes what moves.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    inner: T,
    activity: Arc<Activity>,
    /// What was read and belongs to whoever reads next.
    unread: Bytes,
}

impl<T> Watched<T> {
    pub(crate) fn new(inner: T, activity: Arc<Activity>) -> Self {
        Self { inner, activity, unread: Bytes::new() }
    }

    /// Gives back what was read too early.
    pub(crate) fn unread(&mut self, bytes: Bytes) {
        self.unread = bytes;
    }

    /// Whether what was heard begins so.
    pub(crate) fn begins(&self, with: &[u8]) -> bool {
        self.unread.starts_with(with)
    }

    /// Whether what was heard and what follows may begin so.
    pub(crate) fn may_begin(&self, with: &[u8]) -> bool {
        let length = self.unread.len().min(with.len());
        self.unread[..length] == with[..length]
    }

    fn heard(&self, something: bool) {
        if something {
            self.activity.moved.store(true, Ordering::Relaxed);
            if self.activity.in_flight.load(Ordering::Relaxed) == 0 {
                self.activity.begun.store(true, Ordering::Relaxed);
            }
        }
    }

    fn wrote(&self, written: &Poll<io::Result<usize>>) {
        self.activity.blocked.store(written.is_pending(), Ordering::Relaxed);
        if written.is_ready() {
            self.activity.moved.store(true, Ordering::Relaxed);
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

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.wrote(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = poll_write_joined(Pin::new(&mut this.inner), cx, bufs);
        this.wrote(&written);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn looks_until_over(activity: &Activity, mut between: impl FnMut(&Activity)) -> u32 {
        let mut watch = Watch::default();
        (1..100)
            .find(|_| {
                between(activity);
                watch.look(activity) == Order::End
            })
            .unwrap_or(u32::MAX)
    }

    #[test]
    fn an_idle_connection_ends_and_a_lively_one_stays() {
        assert_eq!(looks_until_over(&Activity::default(), |_| {}), IDLE);
        let lively = |activity: &Activity| activity.moved.store(true, Ordering::Relaxed);
        assert_eq!(looks_until_over(&Activity::default(), lively), u32::MAX);
    }

    #[test]
    fn a_head_that_drips_ends_however_lively() {
        let drips = |activity: &Activity| {
            activity.moved.store(true, Ordering::Relaxed);
            activity.begun.store(true, Ordering::Relaxed);
        };
        assert_eq!(looks_until_over(&Activity::default(), drips), HEAD);
    }

    #[test]
    fn who_does_not_take_the_answer_ends_and_who_waits_for_it_stays() {
        let activity = Arc::new(Activity::default());
        let in_flight = activity.begin(false);
        assert_eq!(looks_until_over(&activity, |_| {}), u32::MAX, "the upstream is slow, not the client");
        activity.blocked.store(true, Ordering::Relaxed);
        assert_eq!(looks_until_over(&activity, |_| {}), STUCK);
        drop(in_flight);
    }
}
