//! What happens on a connection, for those who decide whether it stays: nothing here reads a clock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::Poll;

/// The latest request has no body, or its body has been read to its end.
const BODY_ENDED: u8 = 0;
/// The latest request has a body that nobody reads: HTTP discards the rest of it, or ends the connection.
const BODY_UNCLAIMED: u8 = 1;
/// Somebody reads the body of the latest request.
const BODY_IN_PROGRESS: u8 = 2;

/// What moved on a connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    moved: AtomicBool,
    /// Part of a request's head has come.
    begun: AtomicBool,
    /// The socket does not accept what is written: output waits in HTTP, in TLS, or in both.
    blocked: AtomicBool,
    /// Bytes that the socket has accepted.
    written: AtomicU64,
    in_flight: AtomicU32,
    /// Many requests at once: heads are then the protocol's business.
    multiplexed: AtomicBool,
    /// A request has come.
    asked: AtomicBool,
    /// How many requests have come. Over HTTP/1.1 a head is read only after the body before it, so only the latest
    /// request can have a body that has not come.
    requests: AtomicU32,
    /// How far the body of the latest request is.
    body: AtomicU8,
    /// A response was returned, and nothing of it has been written.
    head_due: AtomicBool,
    /// HTTP could not parse a head. What it would answer has been taken out of what it writes.
    is_unparsable: AtomicBool,
    /// Our side has ended: whatever still comes is no request.
    parting: AtomicBool,
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

impl Activity {
    /// A request's head is complete; it is in flight until the guard is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>, has_body: bool) -> InFlight {
        self.begun.store(false, Ordering::Relaxed);
        change(&self.requests, |count| count.wrapping_add(1));
        self.body.store(if has_body { BODY_UNCLAIMED } else { BODY_ENDED }, Ordering::Relaxed);
        change(&self.in_flight, |count| count + 1);
        self.asked.store(true, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Whether anything has moved since this was last asked.
    pub(crate) fn take_moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }

    /// Whether a request has come since this was last asked.
    pub(crate) fn take_requested(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_multiplexed(&self) -> bool {
        is_set(&self.multiplexed)
    }

    pub(crate) fn is_blocked(&self) -> bool {
        is_set(&self.blocked)
    }

    pub(crate) fn is_lingering(&self) -> bool {
        is_set(&self.parting)
    }

    pub(crate) fn is_unparsable(&self) -> bool {
        is_set(&self.is_unparsable)
    }

    /// Bytes that the socket has accepted.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Whether a head is being read and nothing else goes on. While a response waits for the client, it is the response
    /// that the client is held to.
    pub(crate) fn reads_a_head(&self) -> bool {
        is_set(&self.begun) && !self.is_in_flight() && !self.is_multiplexed() && !self.is_blocked()
    }

    /// Whether the next byte can only be the first of a request, and all output has left: a connection may then be taken
    /// apart and put together again. What is left of a body, or of what is thrown away, would be read as a request, and
    /// nobody would flush what is left of a response.
    pub(crate) fn is_between_requests(&self) -> bool {
        !self.is_in_flight()
            && !is_set(&self.begun)
            && !self.is_blocked()
            && self.body.load(Ordering::Relaxed) == BODY_ENDED
            && !self.is_lingering()
            && !self.is_unparsable()
            && !self.is_multiplexed()
    }

    /// Whether the client may still be sending what nobody wants any more. Over HTTP/2 a stream ends by itself.
    pub(crate) fn may_still_send(&self) -> bool {
        let is_body_owed = self.body.load(Ordering::Relaxed) != BODY_ENDED;
        !self.is_multiplexed() && (is_body_owed || is_set(&self.begun))
    }

    /// Whether a write can only be HTTP's own: no request is being served, and no response waits to be written.
    pub(crate) fn is_write_unsolicited(&self) -> bool {
        !is_set(&self.head_due) && !self.is_in_flight() && !self.is_multiplexed()
    }

    /// From now on many requests come at once.
    pub(crate) fn http2_began(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    /// Bytes have come from the client.
    pub(crate) fn bytes_came(&self) {
        self.moved.store(true, Ordering::Relaxed);
        if !self.is_in_flight() && self.body.load(Ordering::Relaxed) != BODY_IN_PROGRESS {
            self.begun.store(true, Ordering::Relaxed);
        }
    }

    /// Bytes that came with an earlier request are left: they begin a head.
    pub(crate) fn head_was_buffered(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// The socket was written to.
    pub(crate) fn socket_wrote(&self, written: &Poll<io::Result<usize>>) {
        self.blocked.store(written.is_pending(), Ordering::Relaxed);
        if let Poll::Ready(Ok(written)) = written {
            add(&self.written, *written);
            self.moved.store(true, Ordering::Relaxed);
        }
    }

    /// A response was returned to HTTP/1.1.
    pub(crate) fn response_was_returned(&self) {
        self.head_due.store(true, Ordering::Relaxed);
    }

    /// HTTP has written something.
    pub(crate) fn http_wrote(&self) {
        self.head_due.store(false, Ordering::Relaxed);
    }

    /// HTTP could not parse a head.
    pub(crate) fn head_was_rejected(&self) {
        self.is_unparsable.store(true, Ordering::Relaxed);
    }

    /// The head that could not be parsed is being answered. Its client may be sending more of it.
    pub(crate) fn rejection_was_taken(&self) {
        self.is_unparsable.store(false, Ordering::Relaxed);
        self.head_was_buffered();
    }

    /// Our side has ended.
    pub(crate) fn linger_began(&self) {
        self.parting.store(true, Ordering::Relaxed);
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

impl InFlight {
    pub(crate) fn activity(&self) -> &Activity {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        change(&self.0.in_flight, |count| count.saturating_sub(1));
        self.0.moved.store(true, Ordering::Relaxed);
    }
}

/// A request's body that is being read. If it is dropped before its end, nobody claims the rest.
#[derive(Debug)]
pub(crate) struct UnreadBody {
    activity: Arc<Activity>,
    request: u32,
}

impl UnreadBody {
    /// The body of the latest request.
    pub(crate) fn of_latest(activity: &Arc<Activity>) -> Self {
        let request = activity.requests.load(Ordering::Relaxed);
        let body = Self { activity: Arc::clone(activity), request };
        body.set(BODY_IN_PROGRESS);
        body
    }

    /// It has been read to its end.
    pub(crate) fn end(self) {
        self.set(BODY_ENDED);
    }

    /// A later request has a body of its own, of which this one says nothing.
    fn set(&self, body: u8) {
        if self.activity.requests.load(Ordering::Relaxed) == self.request {
            self.activity.body.store(body, Ordering::Relaxed);
        }
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        if self.activity.body.load(Ordering::Relaxed) == BODY_IN_PROGRESS {
            self.set(BODY_UNCLAIMED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_of_an_earlier_request_that_ends_late_leaves_that_of_the_latest_owed() {
        let activity = Arc::new(Activity::default());
        drop(activity.begin_request(true));
        let first = UnreadBody::of_latest(&activity);
        drop(activity.begin_request(true));
        first.end();
        assert!(!activity.is_between_requests() && activity.may_still_send());
        let second = UnreadBody::of_latest(&activity);
        assert!(!activity.is_between_requests());
        second.end();
        assert!(activity.is_between_requests() && !activity.may_still_send());
    }

    #[test]
    fn body_that_nobody_reads_to_its_end_keeps_the_connection_from_being_parked() {
        let activity = Arc::new(Activity::default());
        drop(activity.begin_request(true));
        drop(UnreadBody::of_latest(&activity));
        assert!(!activity.is_between_requests() && activity.may_still_send());
        drop(activity.begin_request(false));
        assert!(activity.is_between_requests());
    }

    #[test]
    fn bytes_of_a_body_that_was_answered_early_begin_no_head() {
        let activity = Arc::new(Activity::default());
        drop(activity.begin_request(true));
        let body = UnreadBody::of_latest(&activity);
        activity.bytes_came();
        assert!(!activity.reads_a_head());
        // HTTP has discarded the rest, or never reads again: either way what comes is no body.
        drop(body);
        activity.bytes_came();
        assert!(activity.reads_a_head());
    }

    #[test]
    fn output_that_the_socket_does_not_accept_keeps_the_connection_from_being_parked() {
        let activity = Arc::new(Activity::default());
        drop(activity.begin_request(false));
        activity.socket_wrote(&Poll::Ready(Ok(1)));
        assert!(activity.is_between_requests());
        activity.socket_wrote(&Poll::Pending);
        assert!(!activity.is_between_requests());
        activity.socket_wrote(&Poll::Ready(Ok(1)));
        assert!(activity.is_between_requests());
    }
}
