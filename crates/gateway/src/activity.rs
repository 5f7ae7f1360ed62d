//! How lively a connection is: those that only hold a place are ended.
//!
//! Nothing here reads a clock. A connection notes what moved, and every few seconds somebody looks.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::joined::poll_write_joined;
use crate::linger::Linger;
use crate::rounds::Order;

/// Looks that the head of a request may take, however lively it drips.
const HEAD: u32 = 3;
/// Looks after which a client that never caught up must have taken its share.
const BEHIND: u32 = 6;
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
    /// Bytes that were.
    written: AtomicU64,
    in_flight: AtomicU32,
    /// Many requests at once: heads are then the protocol's business.
    multiplexed: AtomicBool,
    /// A request has come.
    asked: AtomicBool,
    /// Streams with more to send than their client has made room for; on one's own connection that is `blocked`.
    offered: AtomicU32,
    /// Bytes of bodies that streams had room for.
    taken: AtomicU64,
    /// The client has more to send of a body than we have read.
    owed: AtomicBool,
    /// Our side has ended: whatever still comes is no request.
    parting: AtomicBool,
}

impl Activity {
    /// A request's head is complete; it is in flight until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, has_body: bool) -> InFlight {
        self.begun.store(false, Ordering::Relaxed);
        self.owed.store(has_body, Ordering::Relaxed);
        change(&self.in_flight, |count| count + 1);
        self.asked.store(true, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// A request's body has been read to its end.
    pub(crate) fn body_ended(&self) {
        self.owed.store(false, Ordering::Relaxed);
    }

    /// Whether anything has moved since this was last asked.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }

    /// Whether the next byte can only be the first of a request: a connection may then be taken apart and put together
    /// again. What is left of a body, or of what is thrown away, would be read as a request.
    pub(crate) fn is_between_requests(&self) -> bool {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        self.in_flight.load(Ordering::Relaxed) == 0
            && !is_set(&self.begun)
            && !is_set(&self.blocked)
            && !is_set(&self.owed)
            && !is_set(&self.parting)
            && !is_set(&self.multiplexed)
    }

    /// Whether the client may still be sending what nobody wants any more. Over HTTP/2 a stream ends by itself.
    fn may_still_send(&self) -> bool {
        !self.multiplexed.load(Ordering::Relaxed)
            && (self.owed.load(Ordering::Relaxed) || self.begun.load(Ordering::Relaxed))
    }
}

/// Adds to what only one thread ever adds to.
fn add(to: &AtomicU64, bytes: usize) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(bytes as u64), Ordering::Relaxed);
}

/// Changes what only one thread ever changes: that need not be one step.
fn change(count: &AtomicU32, to: impl FnOnce(u32) -> u32) {
    count.store(to(count.load(Ordering::Relaxed)), Ordering::Relaxed);
}

/// A request that is being served.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Activity>);

impl Drop for InFlight {
    fn drop(&mut self) {
        change(&self.0.in_flight, |count| count.saturating_sub(1));
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
            change(&activity.offered, |count| count + 1);
        } else {
            change(&activity.offered, |count| count.saturating_sub(1));
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
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            add(&this.in_flight.0.taken, frame.data_ref().map_or(0, Buf::remaining));
        }
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
    /// Looks without a request.
    vacant: u32,
    head: u32,
    writes: Behind,
    streams: Behind,
}

impl Watch {
    /// Whether a connection may be told to close: over HTTP/2 any time, since that loses no request; over HTTP/1.1 when
    /// nothing has moved since the last look.
    pub(crate) fn may_close(activity: &Activity) -> bool {
        let moved = activity.has_moved();
        let in_flight = activity.in_flight.load(Ordering::Relaxed) > 0;
        activity.multiplexed.load(Ordering::Relaxed) || (!moved && !in_flight)
    }

    /// What becomes of the connection: it has outstayed its welcome, it may rest, or nothing. Of an answer that waits
    /// for it, `least` bytes must be taken in [`BEHIND`] looks.
    pub(crate) fn look(&mut self, activity: &Activity, least: u64) -> Order {
        // It ends by itself. Were it to rest, what is thrown away would be heard as a request.
        if activity.parting.load(Ordering::Relaxed) {
            return Order::Stay;
        }
        let moved = activity.has_moved();
        self.still = if moved { 0 } else { self.still + 1 };
        let in_flight = activity.in_flight.load(Ordering::Relaxed) > 0;
        let reads_a_head = !in_flight
            && activity.begun.load(Ordering::Relaxed)
            && !activity.multiplexed.load(Ordering::Relaxed);
        self.head = if reads_a_head { self.head + 1 } else { 0 };
        let is_blocked = activity.blocked.load(Ordering::Relaxed);
        let is_offered = activity.offered.load(Ordering::Relaxed) > 0;
        let (written, taken) =
            (activity.written.load(Ordering::Relaxed), activity.taken.load(Ordering::Relaxed));
        let is_too_slow = self.writes.is_too_slow(is_blocked, written, least)
            // Pings move a connection, but take nothing.
            | self.streams.is_too_slow(is_offered && !is_blocked, taken, least);
        let is_vacant = !activity.asked.swap(false, Ordering::Relaxed) && !in_flight;
        self.vacant = if is_vacant { self.vacant + 1 } else { 0 };
        let is_idle = !in_flight && self.still >= IDLE;
        if activity.multiplexed.load(Ordering::Relaxed) && self.vacant >= IDLE {
            // Whatever moves is no request. A request on its way is not lost if it is told first.
            return if self.vacant < IDLE + HEAD { Order::Close } else { Order::End };
        }
        if self.head >= HEAD || is_too_slow || is_idle {
            return Order::End;
        }
        // Once is enough.
        if self.still == 1 && activity.is_between_requests() { Order::Rest } else { Order::Stay }
    }
}

/// For how many looks something has been waiting to be taken, and how much had been taken when that began.
#[derive(Debug, Default)]
struct Behind {
    looks: u32,
    from: u64,
}

impl Behind {
    /// A client that has caught up owes nothing, however little there was: a quiet stream has no slow reader.
    fn is_too_slow(&mut self, is_behind: bool, taken: u64, least: u64) -> bool {
        self.looks = if is_behind { self.looks + 1 } else { 0 };
        if self.looks >= BEHIND {
            if taken.wrapping_sub(self.from) < least {
                return true;
            }
            self.looks = 0;
        }
        if self.looks == 0 {
            self.from = taken;
        }
        false
    }
}

/// A connection that notes what moves.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    inner: T,
    activity: Arc<Activity>,
    /// What was read and belongs to whoever reads next.
    unread: Bytes,
    /// Set once our side has ended.
    linger: Option<Box<Linger>>,
}

impl<T> Watched<T> {
    pub(crate) fn new(inner: T, activity: Arc<Activity>) -> Self {
        Self { inner, activity, unread: Bytes::new(), linger: None }
    }

    /// From now on many requests come at once.
    pub(crate) fn multiplex(&self) {
        self.activity.multiplexed.store(true, Ordering::Relaxed);
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
        if let Poll::Ready(Ok(written)) = written {
            add(&self.activity.written, *written);
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

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<T> {
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
        let this = self.get_mut();
        let linger = if let Some(linger) = &mut this.linger {
            linger
        } else {
            ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
            if !this.activity.may_still_send() {
                return Poll::Ready(Ok(()));
            }
            this.activity.parting.store(true, Ordering::Relaxed);
            this.linger.insert(Box::new(Linger::new()))
        };
        linger.poll(Pin::new(&mut this.inner), cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u64 = 1_000;

    fn looks_until_over(activity: &Activity, mut between: impl FnMut(&Activity)) -> u32 {
        let mut watch = Watch::default();
        (1..100)
            .find(|_| {
                between(activity);
                watch.look(activity, LEAST) == Order::End
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
        assert_eq!(looks_until_over(&activity, |_| {}), BEHIND);
        drop(in_flight);
    }

    /// Takes `bytes` before each look and is behind at it.
    fn takes(bytes: usize) -> impl FnMut(&Activity) {
        move |activity| {
            activity.moved.store(true, Ordering::Relaxed);
            activity.blocked.store(true, Ordering::Relaxed);
            add(&activity.written, bytes);
        }
    }

    #[test]
    fn who_takes_too_little_of_what_waits_ends_and_who_keeps_the_pace_stays() {
        assert_eq!(looks_until_over(&Activity::default(), takes(1)), BEHIND);
        assert_eq!(looks_until_over(&Activity::default(), takes(1_000 / 6)), BEHIND);
        assert_eq!(looks_until_over(&Activity::default(), takes(1_000 / 6 + 1)), u32::MAX);
    }

    #[test]
    fn having_been_fast_does_not_make_up_for_being_slow() {
        let mut look = 0;
        let slackens = |activity: &Activity| {
            look += 1;
            takes(if look <= 12 { 1 << 30 } else { 1 })(activity);
        };
        assert_eq!(looks_until_over(&Activity::default(), slackens), 12 + BEHIND);
    }

    #[test]
    fn who_has_caught_up_owes_nothing() {
        let mut look = 0_u32;
        // An event stream that says little, each time more than fits at once for a moment.
        let quiet = |activity: &Activity| {
            look += 1;
            takes(1)(activity);
            activity.blocked.store(!look.is_multiple_of(BEHIND - 1), Ordering::Relaxed);
        };
        assert_eq!(looks_until_over(&Activity::default(), quiet), u32::MAX);
    }

    #[test]
    fn a_stream_that_waits_is_held_to_the_same_pace() {
        let activity = Arc::new(Activity::default());
        activity.multiplexed.store(true, Ordering::Relaxed);
        let in_flight = activity.begin(false);
        activity.offered.store(1, Ordering::Relaxed);
        let takes = |bytes| {
            move |activity: &Activity| {
                activity.moved.store(true, Ordering::Relaxed);
                add(&activity.taken, bytes);
            }
        };
        assert_eq!(looks_until_over(&activity, takes(1)), BEHIND);
        assert_eq!(looks_until_over(&activity, takes(200)), u32::MAX);
        drop(in_flight);
    }

    #[test]
    fn pings_without_requests_do_not_keep_a_connection_for_ever() {
        let activity = Arc::new(Activity::default());
        activity.multiplexed.store(true, Ordering::Relaxed);
        let pings = |activity: &Activity| activity.moved.store(true, Ordering::Relaxed);
        let mut watch = Watch::default();
        let mut look = || {
            pings(&activity);
            watch.look(&activity, LEAST)
        };
        assert!((1..IDLE).all(|_| look() == Order::Stay));
        drop(activity.begin(false));
        assert!((0..IDLE).all(|_| look() == Order::Stay), "a request, however short, begins it anew");
        assert_eq!(look(), Order::Close, "it is told first");
        assert_eq!((1..HEAD).map(|_| look()).last(), Some(Order::Close));
        assert_eq!(look(), Order::End);
        let in_flight = activity.begin(false);
        assert_eq!(looks_until_over(&activity, pings), u32::MAX, "a long answer is not idle");
        drop(in_flight);
    }
}
