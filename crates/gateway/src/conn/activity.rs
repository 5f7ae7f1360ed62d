//! The state of a connection: what comes next from its client, what is being served, and what waits to be written.
//!
//! [`TrackedIo`](super::io::TrackedIo), hyper's service and the bodies report events; `idle_policy` and `connection` ask what may be
//! done with the connection. Nothing here reads a clock.
//!
//! A connection is in one [`Phase`]. A dash means that the event does not change it:
//!
//! | event | `AwaitingHead` | `ReadingHead` | `BodyUnclaimed` | `BodyInProgress` |
//! |---|---|---|---|---|
//! | bytes came, nothing in flight | `ReadingHead` | – | `ReadingHead` | – |
//! | bytes came, a request in flight | – | never | – | – |
//! | request began, without a body | – | `AwaitingHead` | `AwaitingHead` | `AwaitingHead` |
//! | request began, with a body | `BodyUnclaimed` | `BodyUnclaimed` | – | `BodyUnclaimed` |
//! | its body is read by somebody | – | – | `BodyInProgress` | – |
//! | its body was read to its end | – | – | – | `AwaitingHead` |
//! | its body was dropped before its end | – | – | – | `BodyUnclaimed` |
//! | head was rejected | `Unparsable` | `Unparsable` | `Unparsable` | `Unparsable` |
//! | lingering close began | never | `LingeringClose` | `LingeringClose` | `LingeringClose` |
//! | HTTP/2 began | `Multiplexed` | `Multiplexed` | never | never |
//!
//! `Unparsable` becomes `ReadingHead` when our response to the rejected head is about to be written. `LingeringClose` and
//! `Multiplexed` are final. A request in flight, blocked output and a response of which nothing has been written are
//! independent of the phase, with one exception: while a head is being read, no request is in flight.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Poll;

/// What the client sends next. Over HTTP/1.1 a head is read only after the body before it, so only the latest request
/// can have a body that has not come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    /// The next byte from the client is the first of a head.
    #[default]
    AwaitingHead = 0,
    /// Part of a head has come.
    ReadingHead = 1,
    /// The latest request has a body that nobody reads: hyper discards the rest of it, or closes the connection.
    BodyUnclaimed = 2,
    /// The body of the latest request is being read.
    BodyInProgress = 3,
    /// hyper could not parse a head. Its response was withheld, and ours has not begun.
    Unparsable = 4,
    /// Our side is closed: whatever still comes is discarded.
    LingeringClose = 5,
    /// HTTP/2: heads and bodies are the protocol's business, and any number of requests is in flight.
    Multiplexed = 6,
}

/// All that events change and that is not a plain sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ConnState {
    phase: Phase,
    /// The socket accepts no more: output waits in hyper, in TLS, or in both.
    is_output_blocked: bool,
    /// A response was returned to HTTP/1.1, and nothing was written since.
    is_response_due: bool,
    recent: RecentEvents,
    /// Requests that are being served, up to the end of their responses.
    in_flight: u32,
}

/// What has happened since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct RecentEvents {
    /// Bytes have come or left, or a request has ended.
    has_traffic: bool,
    /// A request has come.
    has_request: bool,
}

impl ConnState {
    const PHASE: u32 = 7;
    const OUTPUT_BLOCKED: u32 = 1 << 3;
    const RESPONSE_DUE: u32 = 1 << 4;
    const TRAFFIC: u32 = 1 << 5;
    const REQUEST: u32 = 1 << 6;
    const IN_FLIGHT_SHIFT: u32 = 8;

    fn pack(self) -> u32 {
        let flag = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        self.phase as u32
            | flag(self.is_output_blocked, Self::OUTPUT_BLOCKED)
            | flag(self.is_response_due, Self::RESPONSE_DUE)
            | flag(self.recent.has_traffic, Self::TRAFFIC)
            | flag(self.recent.has_request, Self::REQUEST)
            | self.in_flight << Self::IN_FLIGHT_SHIFT
    }

    fn unpack(word: u32) -> Self {
        let phase = match word & Self::PHASE {
            0 => Phase::AwaitingHead,
            1 => Phase::ReadingHead,
            2 => Phase::BodyUnclaimed,
            3 => Phase::BodyInProgress,
            4 => Phase::Unparsable,
            5 => Phase::LingeringClose,
            _ => Phase::Multiplexed,
        };
        Self {
            phase,
            is_output_blocked: word & Self::OUTPUT_BLOCKED != 0,
            is_response_due: word & Self::RESPONSE_DUE != 0,
            recent: RecentEvents {
                has_traffic: word & Self::TRAFFIC != 0,
                has_request: word & Self::REQUEST != 0,
            },
            in_flight: word >> Self::IN_FLIGHT_SHIFT,
        }
    }

    /// Whatever belongs to no body that is being read, and comes while no request is served, is a head. The rest of a
    /// body that hyper discards cannot be told from one.
    fn head_started(&mut self) {
        if self.in_flight == 0 && matches!(self.phase, Phase::AwaitingHead | Phase::BodyUnclaimed) {
            self.phase = Phase::ReadingHead;
        }
    }

    fn bytes_received(&mut self) {
        self.recent.has_traffic = true;
        self.head_started();
    }

    fn request_started(&mut self, has_body: bool) {
        self.in_flight += 1;
        self.recent.has_request = true;
        if self.phase.is_open_http1() {
            self.phase = if has_body { Phase::BodyUnclaimed } else { Phase::AwaitingHead };
        }
    }

    fn request_ended(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.recent.has_traffic = true;
    }

    fn body_was_claimed(&mut self) {
        if self.phase == Phase::BodyUnclaimed {
            self.phase = Phase::BodyInProgress;
        }
    }

    fn body_ended(&mut self) {
        if self.phase == Phase::BodyInProgress {
            self.phase = Phase::AwaitingHead;
        }
    }

    fn body_was_dropped(&mut self) {
        if self.phase == Phase::BodyInProgress {
            self.phase = Phase::BodyUnclaimed;
        }
    }

    fn socket_wrote(&mut self, written: &Poll<io::Result<usize>>) {
        self.is_output_blocked = written.is_pending();
        self.recent.has_traffic |= matches!(written, Poll::Ready(Ok(_)));
    }

    fn head_was_rejected(&mut self) {
        if self.phase.is_open_http1() {
            self.phase = Phase::Unparsable;
        }
    }

    /// The client may be sending more of the head that was rejected.
    fn rejection_was_taken(&mut self) {
        if self.phase == Phase::Unparsable {
            self.phase = Phase::ReadingHead;
        }
    }

    fn is_reading_head(self) -> bool {
        self.phase == Phase::ReadingHead && !self.is_output_blocked
    }

    fn is_between_requests(self) -> bool {
        self.phase == Phase::AwaitingHead && self.in_flight == 0 && !self.is_output_blocked
    }

    fn may_still_send(self) -> bool {
        matches!(self.phase, Phase::ReadingHead | Phase::BodyUnclaimed | Phase::BodyInProgress)
    }

    fn is_write_unsolicited(self) -> bool {
        !self.is_response_due && self.in_flight == 0 && self.phase != Phase::Multiplexed
    }
}

impl Phase {
    /// Whether requests come one after another.
    fn is_open_http1(self) -> bool {
        match self {
            Self::AwaitingHead | Self::ReadingHead | Self::BodyUnclaimed | Self::BodyInProgress => true,
            Self::Unparsable | Self::LingeringClose | Self::Multiplexed => false,
        }
    }
}

/// The state of a connection, shared by all that read or write it. They are on one thread, but hyper asks for `Send` of
/// a stream that can be upgraded: hence atomics, which are never changed by two threads at once.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// A packed [`ConnState`].
    state: AtomicU32,
    /// Bytes that the socket has accepted.
    written: AtomicU64,
    /// How many requests have come.
    requests: AtomicU32,
}

impl Activity {
    fn state(&self) -> ConnState {
        ConnState::unpack(self.state.load(Ordering::Relaxed))
    }

    fn update(&self, event: impl FnOnce(&mut ConnState)) {
        let mut state = self.state();
        event(&mut state);
        self.state.store(state.pack(), Ordering::Relaxed);
    }

    /// A request's head is complete; it is in flight until the guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>, has_body: bool) -> RequestGuard {
        self.update(|state| state.request_started(has_body));
        self.requests.store(self.requests().wrapping_add(1), Ordering::Relaxed);
        RequestGuard(Arc::clone(self))
    }

    /// Bytes have come from the client.
    pub(super) fn bytes_received(&self) {
        self.update(ConnState::bytes_received);
    }

    /// Bytes that came with an earlier request are left: they begin a head.
    pub(super) fn head_was_buffered(&self) {
        self.update(ConnState::head_started);
    }

    /// The socket was written to.
    pub(super) fn socket_wrote(&self, written: &Poll<io::Result<usize>>) {
        self.update(|state| state.socket_wrote(written));
        if let Poll::Ready(Ok(written)) = written {
            self.written.store(self.written().wrapping_add(*written as u64), Ordering::Relaxed);
        }
    }

    /// A response was returned to HTTP/1.1.
    pub(super) fn response_was_returned(&self) {
        self.update(|state| state.is_response_due = true);
    }

    /// HTTP has written something.
    pub(super) fn http_wrote(&self) {
        self.update(|state| state.is_response_due = false);
    }

    /// hyper could not parse a head; what it wrote was withheld.
    pub(super) fn head_was_rejected(&self) {
        self.update(ConnState::head_was_rejected);
    }

    /// The head that could not be parsed is being answered.
    pub(super) fn rejection_was_taken(&self) {
        self.update(ConnState::rejection_was_taken);
    }

    /// Our side is closed, and the client may still be sending.
    pub(super) fn linger_started(&self) {
        self.update(|state| state.phase = Phase::LingeringClose);
    }

    /// The client speaks HTTP/2.
    pub(super) fn http2_started(&self) {
        self.update(|state| state.phase = Phase::Multiplexed);
    }

    /// Whether anything has moved since this was last asked.
    pub(crate) fn take_traffic(&self) -> bool {
        let has_traffic = self.state().recent.has_traffic;
        self.update(|state| state.recent.has_traffic = false);
        has_traffic
    }

    /// Whether a request has come since this was last asked.
    pub(super) fn take_request(&self) -> bool {
        let has_request = self.state().recent.has_request;
        self.update(|state| state.recent.has_request = false);
        has_request
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.state().in_flight > 0
    }

    pub(super) fn is_multiplexed(&self) -> bool {
        self.state().phase == Phase::Multiplexed
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.state().is_output_blocked
    }

    pub(super) fn is_lingering(&self) -> bool {
        self.state().phase == Phase::LingeringClose
    }

    pub(super) fn is_unparsable(&self) -> bool {
        self.state().phase == Phase::Unparsable
    }

    /// Bytes that the socket has accepted.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether a head is being read and nothing else goes on. While a response waits for the client, it is the response
    /// that the client is held to.
    pub(super) fn is_reading_head(&self) -> bool {
        self.state().is_reading_head()
    }

    /// Whether the next byte can only be the first of a request, and all output has left: the connection may then be taken
    /// from hyper and handed to it again. The rest of a body, or of what is discarded, would be read as a request, and
    /// nobody would flush the rest of a response.
    pub(super) fn is_between_requests(&self) -> bool {
        self.state().is_between_requests()
    }

    /// Whether the client may still be sending what nobody wants any more. Over HTTP/2 a stream ends by itself.
    pub(super) fn may_still_send(&self) -> bool {
        self.state().may_still_send()
    }

    /// Whether a write can only be hyper's own: no request is being served, and no response waits to be written.
    pub(super) fn is_write_unsolicited(&self) -> bool {
        self.state().is_write_unsolicited()
    }
}

/// A request that is being served.
#[derive(Debug)]
pub(super) struct RequestGuard(Arc<Activity>);

impl RequestGuard {
    pub(super) fn activity(&self) -> &Activity {
        &self.0
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.update(ConnState::request_ended);
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
    pub(crate) fn for_latest(activity: &Arc<Activity>) -> Self {
        activity.update(ConnState::body_was_claimed);
        Self { activity: Arc::clone(activity), request: activity.requests() }
    }

    /// It has been read to its end.
    pub(crate) fn end(self) {
        self.report(ConnState::body_ended);
    }

    /// A later request has a body of its own, of which this one says nothing.
    fn report(&self, event: impl FnOnce(&mut ConnState)) {
        if self.activity.requests() == self.request {
            self.activity.update(event);
        }
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        // After its end this changes nothing.
        self.report(ConnState::body_was_dropped);
    }
}

#[cfg(test)]
mod tests;
