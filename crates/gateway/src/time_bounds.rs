//! How long a request may take: the timeouts of its upstream, and the deadline of its client.

use std::cell::Cell;
use std::time::Duration;

use tidegate_core::{CallEnd, Timestamp};
use tidegate_store::Clock;
use tidegate_tower::deadline::Deadline;

use crate::error::ServeError;
use crate::http::request_body::UploadHandle;
use crate::upstream::{AttemptTimeouts, ForwardedRequest};

/// Less than this is too late: upstreams get whole milliseconds, and some read 0 as unlimited.
const MIN_REMAINING: Duration = Duration::from_millis(1);
/// A server that obeys a deadline ends its work in the last tenth of the time, or in this last part of it.
const DEADLINE_MARGIN: Duration = Duration::from_millis(10);

/// The bounds of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeBounds<'e> {
    pub(crate) clock: &'e dyn Clock,
    /// When the limits let the request pass: all waits since then are part of the total time.
    pub(crate) started: Timestamp,
    pub(crate) timeouts: AttemptTimeouts,
    pub(crate) deadline: Option<Deadline>,
    /// How long a client may send nothing of a body. It is longer than the minimum rate allows, so that a client that is too
    /// slow gets the error for that.
    pub(crate) max_stall: Duration,
}

/// The bound of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptBound {
    pub(crate) timeout: Duration,
    /// The deadline of the client comes first: if it passes, that says nothing about the server.
    pub(crate) is_deadline: bool,
}

/// The bound of a running attempt.
#[derive(Debug)]
pub(crate) struct RunningBound {
    is_deadline: Cell<bool>,
    /// How long the client has sent nothing of the body.
    stalled: Cell<Duration>,
}

impl RunningBound {
    pub(crate) fn new(bound: AttemptBound) -> Self {
        Self { is_deadline: Cell::new(bound.is_deadline), stalled: Cell::default() }
    }

    /// Whether the deadline of the client comes first.
    pub(crate) fn is_deadline(&self) -> bool {
        self.is_deadline.get()
    }
}

impl TimeBounds<'_> {
    /// The bound of the first attempt of a request that has not waited. Without a deadline the clock is not read.
    pub(crate) fn first(&self) -> Result<AttemptBound, ServeError> {
        let timeout = self.timeouts.request.min(self.timeouts.total);
        match self.deadline {
            None => Ok(AttemptBound { timeout, is_deadline: false }),
            Some(deadline) => self.until(deadline, timeout).ok_or(ServeError::DeadlineExceeded),
        }
    }

    /// The bound of another attempt, or of the first one after a wait.
    pub(crate) fn next(&self) -> Result<AttemptBound, ServeError> {
        let timeout = self.timeouts.request.min(self.left_of_total());
        // The server would be told of a deadline of zero, which some read as none.
        if timeout < MIN_REMAINING {
            return Err(ServeError::UpstreamTimeout);
        }
        match self.deadline {
            None => Ok(AttemptBound { timeout, is_deadline: false }),
            Some(deadline) => self.until(deadline, timeout).ok_or(ServeError::DeadlineExceeded),
        }
    }

    /// Tells the server how long the request may take: until the deadline of the client, or else the rest of the total time. That
    /// ends with the head of the response, and does not count while the client sends the body.
    #[inline]
    pub(crate) fn tell_server(&self, request: &mut ForwardedRequest) {
        let deadline = match self.deadline {
            Some(deadline) => deadline,
            None if self.timeouts.starts_deadline && request.upload().is_complete() => {
                Deadline::for_head(self.started + self.timeouts.total.into())
            }
            None => return,
        };
        if let Some(headers) = request.headers_mut() {
            deadline.write_headers(headers, self.clock.now());
        }
    }

    /// Whether there is time left after `wait`.
    pub(crate) fn allows_wait(&self, wait: Duration) -> bool {
        let is_within = |deadline: Deadline| wait < Duration::from(deadline.remaining(self.clock.now()));
        wait.is_zero() || (wait < self.left_of_total() && self.deadline.is_none_or(is_within))
    }

    /// More time for an attempt whose bound has passed: while the client sends the body, the server cannot respond. Nothing
    /// extends a deadline.
    pub(crate) fn extension(&self, upload: &UploadHandle, running: &RunningBound) -> Option<Duration> {
        let timeout = self.timeouts.request;
        let stalled = if upload.has_progress() { Duration::ZERO } else { running.stalled.get() + timeout };
        running.stalled.set(stalled);
        let is_uploading = stalled.is_zero() || (upload.awaits_client() && stalled <= self.max_stall);
        if running.is_deadline() || !is_uploading {
            return None;
        }
        let Some(deadline) = self.deadline else { return Some(timeout) };
        let bound = self.until(deadline, timeout);
        running.is_deadline.set(bound.is_none_or(|bound| bound.is_deadline));
        bound.map(|bound| bound.timeout)
    }

    /// Whether the deadline of the client explains the end of an attempt within `bound`: it is shorter than the timeout of the
    /// operator, and the server has responded 504, or has failed when the deadline was about to pass.
    pub(crate) fn is_due_to_deadline(
        &self,
        end: CallEnd,
        bound: AttemptBound,
        running: &RunningBound,
    ) -> bool {
        let margin = DEADLINE_MARGIN.max(bound.timeout / 10);
        let is_over = |deadline: Deadline| Duration::from(deadline.remaining(self.clock.now())) <= margin;
        running.is_deadline() && (end == CallEnd::Status(504) || self.deadline.is_some_and(is_over))
    }

    /// How long the request may wait before an attempt.
    pub(crate) fn left(&self) -> Duration {
        let left = self.left_of_total();
        self.deadline.map_or(left, |deadline| left.min(deadline.remaining(self.clock.now()).into()))
    }

    fn left_of_total(&self) -> Duration {
        self.timeouts.total.saturating_sub(self.clock.now().since(self.started).into())
    }

    fn until(&self, deadline: Deadline, timeout: Duration) -> Option<AttemptBound> {
        let left = Duration::from(deadline.remaining(self.clock.now()));
        let bound = AttemptBound { timeout: timeout.min(left), is_deadline: left < timeout };
        (left >= MIN_REMAINING).then_some(bound)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::TimeSpan;
    use tidegate_store::ManualClock;

    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn bounds(clock: &ManualClock, deadline: Option<u64>) -> TimeBounds<'_> {
        let second = Duration::from_secs(1);
        let timeouts = AttemptTimeouts {
            connect: second,
            request: 2 * second,
            idle: second,
            total: 5 * second,
            starts_deadline: false,
        };
        let deadline = deadline.map(|seconds| Deadline::at(START + TimeSpan::from_secs(seconds)));
        TimeBounds { clock, started: START, timeouts, deadline, max_stall: second }
    }

    fn seconds(bound: Result<AttemptBound, ServeError>) -> Option<(u64, bool)> {
        bound.ok().map(|bound| (bound.timeout.as_secs(), bound.is_deadline))
    }

    #[test]
    fn attempt_has_the_shortest_of_request_total_and_deadline() {
        let clock = ManualClock::at(START);
        assert_eq!(seconds(bounds(&clock, None).first()), Some((2, false)));
        assert_eq!(seconds(bounds(&clock, Some(1)).first()), Some((1, true)));
        assert_eq!(seconds(bounds(&clock, Some(9)).first()), Some((2, false)));
        assert_eq!(seconds(bounds(&clock, Some(0)).first()), None);
        clock.advance(TimeSpan::from_secs(4));
        assert_eq!(seconds(bounds(&clock, None).next()), Some((1, false)), "the rest of the total time");
        assert!(matches!(bounds(&clock, Some(4)).next(), Err(ServeError::DeadlineExceeded)));
        clock.advance(TimeSpan::from_secs(1));
        assert!(matches!(bounds(&clock, None).next(), Err(ServeError::UpstreamTimeout)));
    }

    #[test]
    fn failure_is_due_to_a_deadline_that_is_shorter_than_the_timeout_and_about_to_pass() {
        let clock = ManualClock::at(START);
        let is_due = |deadline, end| {
            let bounds = bounds(&clock, deadline);
            let bound = AttemptBound { timeout: Duration::from_secs(1), is_deadline: deadline == Some(1) };
            bounds.is_due_to_deadline(end, bound, &RunningBound::new(bound))
        };
        assert!(is_due(Some(1), CallEnd::Status(504)));
        let ends = [CallEnd::Reset, CallEnd::Status(500), CallEnd::Status(503)];
        assert!(ends.iter().all(|end| !is_due(Some(1), *end)), "the server had time");
        clock.advance(TimeSpan::from_millis(900));
        assert!(ends.iter().all(|end| is_due(Some(1), *end)));
        for deadline in [None, Some(2)] {
            assert!(!is_due(deadline, CallEnd::Status(504)), "the timeout of the operator is shorter");
            assert!(ends.iter().all(|end| !is_due(deadline, *end)));
        }
    }

    #[test]
    fn wait_before_a_retry_must_leave_time() {
        let clock = ManualClock::at(START);
        let second = Duration::from_secs(1);
        assert!(bounds(&clock, None).allows_wait(4 * second));
        assert!(!bounds(&clock, None).allows_wait(5 * second));
        assert!(!bounds(&clock, Some(3)).allows_wait(3 * second));
        assert!(bounds(&clock, Some(3)).allows_wait(2 * second));
        assert!(bounds(&clock, Some(0)).allows_wait(Duration::ZERO), "the next attempt checks the deadline");
    }
}
