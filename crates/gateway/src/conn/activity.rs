//! The state of a connection: what the client sends next, which requests are in flight, and what is waiting to be written.
//!
//! [`TrackedIo`](super::io::TrackedIo), hyper's service and the bodies report events; `idle_policy` and `connection` query
//! the state. Nothing here reads a clock.
//!
//! A connection is in one [`Phase`]. A dash means that the event does not change it:
//!
//! | event | `AwaitingHead` | `ReadingHead` | `BodyUnclaimed` | `BodyInProgress` |
//! |---|---|---|---|---|
//! | bytes received, nothing in flight | `ReadingHead` | – | `ReadingHead` | – |
//! | bytes received, a request in flight | – | never | – | – |
//! | request started, without a body | – | `AwaitingHead` | `AwaitingHead` | `AwaitingHead` |
//! | request started, with a body | `BodyUnclaimed` | `BodyUnclaimed` | – | `BodyUnclaimed` |
//! | its body was claimed by a reader | – | – | `BodyInProgress` | – |
//! | its body ended | – | – | – | `AwaitingHead` |
//! | its body was dropped before its end | – | – | – | `BodyUnclaimed` |
//! | head was rejected | `Unparsable` | `Unparsable` | `Unparsable` | `Unparsable` |
//! | lingering close started | never | `LingeringClose` | `LingeringClose` | `LingeringClose` |
//! | HTTP/2 started | `Multiplexed` | `Multiplexed` | never | never |
//!
//! `Unparsable` becomes `ReadingHead` when our response to the rejected head is about to be written. `LingeringClose` and
//! `Multiplexed` are final. A request in flight, blocked output and a response of which nothing has been written are
//! independent of the phase, with one exception: while a head is being read, no request is in flight.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::Poll;

use tidegate_listener::BodyLength;

/// What the client sends next. Over HTTP/1.1 a head follows the body before it, so only the latest request can have an
/// unread body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    /// The next byte from the client starts a head.
    #[default]
    AwaitingHead = 0,
    /// Part of a head was received.
    ReadingHead = 1,
    /// The latest request has a body that has no reader: hyper discards the rest of it, or closes the connection.
    BodyUnclaimed = 2,
    /// The body of the latest request is being read.
    BodyInProgress = 3,
    /// hyper could not parse a head. Its response was withheld, and ours has not started.
    Unparsable = 4,
    /// Our side is closed; further input is discarded.
    LingeringClose = 5,
    /// HTTP/2: hyper tracks heads and bodies, and any number of requests may be in flight.
    Multiplexed = 6,
}

/// The part of the state that is not a plain counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ConnState {
    phase: Phase,
    /// The socket is full: output is buffered in hyper, in TLS, or in both.
    is_output_blocked: bool,
    /// The service returned an HTTP/1.1 response, and nothing was written since.
    is_response_due: bool,
    recent: RecentEvents,
    /// Requests in flight, up to the end of their responses.
    in_flight: u32,
}

/// Events since they were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct RecentEvents {
    /// Bytes were received or sent, or a request has ended.
    has_traffic: bool,
    /// A request has started.
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

    /// Bytes that arrive while no request is in flight and no body is being read start a head. The rest of a body that
    /// hyper discards looks the same.
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

    /// Our response starts. The client may still be sending the rejected head.
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
    /// Whether this is an HTTP/1.1 connection that can still receive requests.
    fn is_open_http1(self) -> bool {
        match self {
            Self::AwaitingHead | Self::ReadingHead | Self::BodyUnclaimed | Self::BodyInProgress => true,
            Self::Unparsable | Self::LingeringClose | Self::Multiplexed => false,
        }
    }
}

/// The state of a connection, shared by everything that reads or writes it. All of that runs on one thread, but hyper
/// requires `Send` of a stream that can be upgraded. Hence the atomics; two threads never write them concurrently.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// A packed [`ConnState`].
    state: AtomicU32,
    /// Bytes that the socket has accepted.
    written: AtomicU64,
    /// Requests so far.
    requests: AtomicU32,
    /// The length of the body that starts with the next byte; 0 for none, [`Self::CHUNKED`] for chunks.
    body_length: AtomicU64,
    /// Bytes that were received after the last head.
    ahead: AtomicU64,
    /// A packed [`HangupWatch`].
    hangup: AtomicU8,
}

/// Whether the socket is watched for the client's disconnect although nothing is read. Otherwise a disconnect behind an unread
/// body or a pipelined request would not be noticed. Over HTTP/2 everything is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HangupWatch {
    /// No request waits.
    #[default]
    Off = 0,
    /// A request waits for its turn.
    On = 1,
    /// The last request that waited no longer does.
    Ending = 2,
}

/// Watches the socket while a request waits.
#[derive(Debug)]
pub(crate) struct HangupGuard(Arc<Activity>);

impl Drop for HangupGuard {
    fn drop(&mut self) {
        self.0.set_hangup_watch(HangupWatch::Ending);
    }
}

impl Activity {
    const CHUNKED: u64 = u64::MAX;

    fn state(&self) -> ConnState {
        ConnState::unpack(self.state.load(Ordering::Relaxed))
    }

    fn update(&self, event: impl FnOnce(&mut ConnState)) {
        let mut state = self.state();
        event(&mut state);
        self.state.store(state.pack(), Ordering::Relaxed);
    }

    /// Ends the connection if the client disconnects before the guard is dropped.
    pub(crate) fn watch_hangup(self: &Arc<Self>) -> Option<HangupGuard> {
        if self.is_multiplexed() {
            return None;
        }
        self.set_hangup_watch(HangupWatch::On);
        Some(HangupGuard(Arc::clone(self)))
    }

    pub(super) fn hangup_watch(&self) -> HangupWatch {
        match self.hangup.load(Ordering::Relaxed) {
            0 => HangupWatch::Off,
            1 => HangupWatch::On,
            _ => HangupWatch::Ending,
        }
    }

    pub(super) fn set_hangup_watch(&self, watch: HangupWatch) {
        self.hangup.store(watch as u8, Ordering::Relaxed);
    }

    /// A request's head is complete; it is in flight until the guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>, has_body: bool) -> RequestGuard {
        self.update(|state| state.request_started(has_body));
        self.requests.store(self.requests().wrapping_add(1), Ordering::Relaxed);
        RequestGuard(Arc::clone(self))
    }

    /// hyper has parsed a head, and a body of this length follows it.
    pub(super) fn body_follows(&self, length: BodyLength) {
        let length = match length {
            BodyLength::Known(length) => length,
            BodyLength::Chunked => Self::CHUNKED,
        };
        self.body_length.store(length, Ordering::Relaxed);
    }

    /// The length of the body that starts with the next byte.
    pub(super) fn take_body_length(&self) -> Option<BodyLength> {
        let length = self.body_length.load(Ordering::Relaxed);
        if length == 0 {
            return None;
        }
        self.body_length.store(0, Ordering::Relaxed);
        Some(if length == Self::CHUNKED { BodyLength::Chunked } else { BodyLength::Known(length) })
    }

    /// This many bytes were received after the head that hyper was given last.
    pub(super) fn set_ahead(&self, bytes: u64) {
        self.ahead.store(bytes, Ordering::Relaxed);
    }

    /// The bytes that were received after the last head.
    pub(super) fn ahead(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Whether a part of the latest body was not read.
    pub(super) fn is_body_unread(&self) -> bool {
        matches!(self.state().phase, Phase::BodyUnclaimed | Phase::BodyInProgress)
    }

    /// Bytes were received from the client.
    pub(super) fn bytes_received(&self) {
        self.update(ConnState::bytes_received);
    }

    /// Bytes received with an earlier request are left over. They start a head.
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

    /// The service returned an HTTP/1.1 response.
    pub(super) fn response_was_returned(&self) {
        self.update(|state| state.is_response_due = true);
    }

    /// hyper has written something.
    pub(super) fn http_wrote(&self) {
        self.update(|state| state.is_response_due = false);
    }

    /// hyper could not parse a head; its response was withheld.
    pub(super) fn head_was_rejected(&self) {
        self.update(ConnState::head_was_rejected);
    }

    /// The withheld response was taken; ours is written instead.
    pub(super) fn rejection_was_taken(&self) {
        self.update(ConnState::rejection_was_taken);
    }

    /// Our side is closed, and the client may still be sending.
    pub(super) fn linger_started(&self) {
        self.update(|state| state.phase = Phase::LingeringClose);
    }

    /// The client uses HTTP/2.
    pub(super) fn http2_started(&self) {
        self.update(|state| state.phase = Phase::Multiplexed);
    }

    /// Whether there was traffic since the last call.
    pub(crate) fn take_traffic(&self) -> bool {
        let has_traffic = self.state().recent.has_traffic;
        self.update(|state| state.recent.has_traffic = false);
        has_traffic
    }

    /// Whether a request has started since the last call.
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

    /// Whether a head is being read and no output is blocked. While output is blocked, the slow-reader limit applies
    /// instead of the head timeout.
    pub(super) fn is_reading_head(&self) -> bool {
        self.state().is_reading_head()
    }

    /// Whether the next byte can only start a request, and all output was written. Only then may the connection be parked,
    /// that is, taken from hyper and given back later. Otherwise hyper would parse the rest of a body as a request, and
    /// the rest of a response would not be flushed.
    pub(super) fn is_between_requests(&self) -> bool {
        self.state().is_between_requests()
    }

    /// Whether the client may still be sending input that is not needed any more. Over HTTP/2 streams are reset instead.
    pub(super) fn may_still_send(&self) -> bool {
        self.state().may_still_send()
    }

    /// Whether a write can only be a response of hyper itself: no request is in flight, and no response is due.
    pub(super) fn is_write_unsolicited(&self) -> bool {
        self.state().is_write_unsolicited()
    }
}

/// Counts a request as in flight until it is dropped.
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

/// A request body that is being read. If it is dropped before its end, the rest is unclaimed.
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

    /// The body was read to its end.
    pub(crate) fn end(self) {
        self.report(ConnState::body_ended);
    }

    /// Updates the state, unless a later request has started: the state is about its body then.
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
