//! Which requests are sent again.

use tidegate_core::{TimeSpan, Timestamp};

use crate::deadline::Deadline;
use crate::error::LayerError;

/// Whether to send a request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryAdvice {
    /// The result is final.
    Stop,
    /// Send the request again after the backoff.
    Retry,
    /// Send the request again after the backoff, and not before this time has passed: the service asked for it.
    RetryAfter(TimeSpan),
}

/// Decides which requests are sent again. Closures from a request and its result to an advice implement it for requests that
/// are `Clone`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot retry a `{R}`",
    note = "is the body `Clone`? A request whose body is a stream cannot be sent twice",
    note = "receive the body before this layer, or say how to copy a request: \
            `.rules(HttpRetry::new().clone_with(|request: &Request<_>| …))`, where `None` stands for one that is sent only once"
)]
pub trait RetryRules<R, T> {
    /// A copy of the request, or `None` if it must not be sent again.
    fn clone_request(&self, request: &R) -> Option<R>;

    /// Whether to send `request` again after this result, which arrived at `now`.
    fn advise(&self, request: &R, result: Result<&T, &LayerError>, now: Timestamp) -> RetryAdvice;

    /// The deadline of the request: that of the current task, unless the request has its own.
    fn deadline(&self, _request: &R) -> Option<Deadline> {
        Deadline::current()
    }
}

impl<R, T, F> RetryRules<R, T> for F
where
    R: Clone,
    F: Fn(&R, Result<&T, &LayerError>) -> RetryAdvice,
{
    fn clone_request(&self, request: &R) -> Option<R> {
        Some(request.clone())
    }

    fn advise(&self, request: &R, result: Result<&T, &LayerError>, _now: Timestamp) -> RetryAdvice {
        self(request, result)
    }
}
