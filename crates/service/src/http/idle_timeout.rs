//! Closes connections that send a head too slowly, or nothing for too long.
//!
//! Requests read no clock for this: the connection counts what it does, and a timer compares the counts.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// How often the counts are compared.
pub(super) const TICK: Duration = Duration::from_millis(2_500);
/// A head must be complete after this many ticks: 10 seconds.
const HEAD_TICKS: u32 = 4;
/// A connection without a request is closed after this many ticks: 75 seconds.
pub(super) const IDLE_TICKS: u32 = 30;

/// The bytes with which an HTTP/2 connection begins.
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a connection has done.
#[derive(Debug, Default)]
pub(super) struct ConnectionCounts {
    /// Reads since the last request ended: parts of the next head.
    head_reads: Cell<u64>,
    requests: Cell<u64>,
    in_flight: Cell<u32>,
    is_http2: Cell<bool>,
}

impl ConnectionCounts {
    /// Counts a request until the returned value is dropped.
    pub(super) fn begin_request(self: &Rc<Self>, is_http2: bool) -> CountedRequest {
        self.requests.set(self.requests.get() + 1);
        self.in_flight.set(self.in_flight.get() + 1);
        self.is_http2.set(is_http2);
        CountedRequest(Rc::clone(self))
    }

    /// Counts a read of `bytes`.
    pub(super) fn count_read(&self, bytes: &[u8]) {
        // Before the first request only its preface shows that a connection is HTTP/2. It arrives in the first read, which is as
        // long as the preface; in a preface of several reads the rest looks like a slow head.
        if self.requests.get() == 0 && self.head_reads.get() == 0 && bytes.starts_with(HTTP2_PREFACE) {
            self.is_http2.set(true);
        }
        self.head_reads.set(self.head_reads.get() + 1);
    }
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct CountedRequest(Rc<ConnectionCounts>);

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        // What was read until now are parts of this request.
        self.0.head_reads.set(0);
    }
}

/// How long a connection has not begun a request, in ticks.
#[derive(Debug, Default)]
pub(super) struct IdleTimeout {
    requests: u64,
    ticks: u32,
    head_ticks: u32,
}

impl IdleTimeout {
    /// Called at every tick. Returns whether the connection must be closed.
    pub(super) fn has_passed(&mut self, counts: &ConnectionCounts) -> bool {
        let requests = counts.requests.get();
        if requests != self.requests || counts.in_flight.get() > 0 {
            *self = Self { requests, ticks: 0, head_ticks: 0 };
            return false;
        }
        self.ticks += 1;
        // Over HTTP/2 reads are not always a part of a request: clients send pings. Over HTTP/1.1 they are a part of a head.
        // How often a slow client sends a part of it does not matter.
        if counts.head_reads.get() > 0 && !counts.is_http2.get() {
            self.head_ticks += 1;
        }
        self.head_ticks > HEAD_TICKS || self.ticks > IDLE_TICKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(counts: &ConnectionCounts) {
        counts.count_read(b"GET /");
    }

    /// The number of ticks until the timeout passes, if `each` happens before every tick.
    fn ticks_until_passed(counts: &ConnectionCounts, each: impl Fn()) -> Option<u32> {
        let mut timeout = IdleTimeout::default();
        (1..1_000).find(|_| {
            each();
            timeout.has_passed(counts)
        })
    }

    #[test]
    fn connection_without_requests_is_closed_after_the_idle_timeout() {
        let counts = Rc::new(ConnectionCounts::default());
        assert_eq!(ticks_until_passed(&counts, || {}), Some(IDLE_TICKS + 1));
        assert_eq!(ticks_until_passed(&counts, || drop(counts.begin_request(false))), None);
        let _in_flight = counts.begin_request(false);
        assert_eq!(ticks_until_passed(&counts, || {}), None);
    }

    #[test]
    fn connection_that_sends_a_head_slowly_is_closed_after_the_head_timeout() {
        let counts = ConnectionCounts::default();
        assert_eq!(ticks_until_passed(&counts, || read(&counts)), Some(HEAD_TICKS + 1));
        let once = ConnectionCounts::default();
        read(&once);
        assert_eq!(ticks_until_passed(&once, || {}), Some(HEAD_TICKS + 1), "a part of a head");
        let pinging = ConnectionCounts::default();
        pinging.is_http2.set(true);
        assert_eq!(ticks_until_passed(&pinging, || read(&pinging)), Some(IDLE_TICKS + 1));
    }

    #[test]
    fn connection_is_idle_after_a_request_whose_body_arrives_after_a_tick() {
        let counts = Rc::new(ConnectionCounts::default());
        let mut timeout = IdleTimeout::default();
        read(&counts);
        let in_flight = counts.begin_request(false);
        assert!(!timeout.has_passed(&counts));
        read(&counts);
        drop(in_flight);
        let ticks = (1..1_000).find(|_| timeout.has_passed(&counts));
        assert_eq!(ticks, Some(IDLE_TICKS + 1));
        let mut timeout = IdleTimeout::default();
        assert!(!timeout.has_passed(&counts));
        read(&counts);
        let ticks = (1..1_000).find(|_| timeout.has_passed(&counts));
        assert_eq!(ticks, Some(HEAD_TICKS + 1), "a part of the next head");
    }

    #[test]
    fn http2_connection_without_a_request_is_idle() {
        let counts = ConnectionCounts::default();
        counts.count_read(HTTP2_PREFACE);
        assert_eq!(ticks_until_passed(&counts, || read(&counts)), Some(IDLE_TICKS + 1));
        let other = ConnectionCounts::default();
        other.count_read(b"PRI * HTTP/1.1\r\n");
        assert_eq!(ticks_until_passed(&other, || {}), Some(HEAD_TICKS + 1));
    }
}
