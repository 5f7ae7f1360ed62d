//! The deadline of a request.

use http::{HeaderMap, Request};
use tidegate_core::{TimeSpan, Timestamp};
use tokio::task::futures::TaskLocalFuture;

use super::headers::{self, DeadlineHeaders};

tokio::task_local! {
    static CURRENT: Deadline;
}

/// When the caller of a request stops waiting for the result.
///
/// Headers carry the time that remains rather than an instant, so that clocks of different machines need not agree. The
/// instant is by the clock that read the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    at: Timestamp,
    headers: DeadlineHeaders,
}

impl Deadline {
    /// A deadline at this instant.
    pub const fn at(at: Timestamp) -> Self {
        Self { at, headers: DeadlineHeaders { grpc: false, envoy: false, is_for_head: false } }
    }

    /// A deadline at this instant for the head of the response: what has started by then goes on. `X-Request-Deadline-Scope: head`
    /// tells the next service so.
    pub const fn for_head(at: Timestamp) -> Self {
        Self { at, headers: DeadlineHeaders { grpc: false, envoy: false, is_for_head: true } }
    }

    /// Whether it ends when the response starts.
    pub const fn is_for_head(self) -> bool {
        self.headers.is_for_head
    }

    /// Reads `X-Request-Deadline-Ms`, `grpc-timeout` and `X-Envoy-Expected-Rq-Timeout-Ms`; the shortest time applies. `None`
    /// if there is none of them. An invalid value is ignored: it does not say how long the caller waits.
    pub fn from_headers(headers: &HeaderMap, now: Timestamp) -> Option<Self> {
        let (remaining, headers) = headers::read(headers)?;
        Some(Self { at: now + remaining, headers })
    }

    /// Removes the headers that [`Self::from_headers`] reads. A value that it cannot read must not be forwarded either: the next
    /// service might read it in another way.
    pub fn remove_headers(headers: &mut HeaderMap) {
        headers::remove(headers);
    }

    /// The deadline of the current task: set by [`Self::scope`] and by the deadline layer.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|deadline| *deadline).ok()
    }

    /// The earlier of the deadlines of a request and of the current task.
    pub fn of_request<B>(request: &Request<B>) -> Option<Self> {
        let own = request.extensions().get::<Self>().copied();
        own.into_iter().chain(Self::current()).min_by_key(|deadline| deadline.at)
    }

    /// Runs `future` with this deadline as the [current](Self::current) one.
    pub fn scope<F: Future>(self, future: F) -> TaskLocalFuture<Self, F> {
        CURRENT.scope(self, future)
    }

    /// Runs `function` with this deadline as the [current](Self::current) one.
    pub fn sync_scope<T>(self, function: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self, function)
    }

    /// The instant.
    pub const fn instant(self) -> Timestamp {
        self.at
    }

    /// The time that remains at `now`; zero if the deadline has passed.
    pub const fn remaining(self, now: Timestamp) -> TimeSpan {
        self.at.since(now)
    }

    /// Whether the deadline has passed at `now`.
    pub fn has_passed(self, now: Timestamp) -> bool {
        self.at <= now
    }

    /// The deadline, or `at` if that is earlier: for a service with a longest time of its own.
    pub fn at_most(self, at: Timestamp) -> Self {
        Self { at: self.at.min(at), ..self }
    }

    /// Writes the time that remains to the headers of an outgoing request: `X-Request-Deadline-Ms` always, `grpc-timeout` and
    /// `X-Envoy-Expected-Rq-Timeout-Ms` if the deadline came with them or `headers` has them.
    pub fn write_headers(self, headers: &mut HeaderMap, now: Timestamp) {
        headers::write(headers, self.headers, self.remaining(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    #[test]
    fn deadline_remaining_time_shrinks_to_zero() {
        let deadline = Deadline::at(NOW + TimeSpan::from_secs(2));
        assert_eq!(deadline.remaining(NOW + TimeSpan::from_millis(500)), TimeSpan::from_millis(1_500));
        assert!(!deadline.has_passed(NOW + TimeSpan::from_millis(1_999)));
        assert!(deadline.has_passed(NOW + TimeSpan::from_secs(2)));
        assert_eq!(deadline.remaining(NOW + TimeSpan::from_secs(3)), TimeSpan::ZERO);
        assert_eq!(deadline.at_most(NOW), Deadline::at(NOW));
    }

    #[test]
    fn deadline_of_three_hops_with_five_seconds_each_leaves_25_20_15() {
        let mut headers = HeaderMap::new();
        headers.insert("x-request-deadline-ms", "30000".parse().unwrap());
        let mut now = NOW;
        let remaining = [(); 3].map(|()| {
            let deadline = Deadline::from_headers(&headers, now).unwrap();
            now = now + TimeSpan::from_secs(5);
            deadline.write_headers(&mut headers, now);
            headers["x-request-deadline-ms"].to_str().unwrap().to_owned()
        });
        assert_eq!(remaining, ["25000", "20000", "15000"]);
    }

    #[tokio::test]
    async fn deadline_is_current_within_its_scope_only() {
        assert_eq!(Deadline::current(), None);
        let deadline = Deadline::at(NOW);
        deadline.scope(async { assert_eq!(Deadline::current(), Some(deadline)) }).await;
        assert_eq!(Deadline::current(), None);
    }
}
