//! Errors of layers: what they say about the service that was called.
//!
//! The error of every layer is a [`BoxError`]. It is one small struct for each cause, or the error of the inner service as it
//! was. So a stack of any depth has one error type, and a cause is found with `downcast_ref`. A call that succeeds allocates
//! nothing for it.

use std::error::Error;

use tidegate_core::{CallEnd, CallOutcome};

/// The error of every layer.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Finds an error of type `E`: the error itself or one of its sources.
pub fn find_cause<E: Error + 'static>(error: &BoxError) -> Option<&E> {
    let mut next: Option<&(dyn Error + 'static)> = Some(&**error);
    while let Some(cause) = next {
        if let Some(found) = cause.downcast_ref() {
            return Some(found);
        }
        next = cause.source();
    }
    None
}

/// Whether a layer rejected the call before the service was called: the breaker is open, the bulkhead or the thread pool is
/// full, the service is overloaded, or a rate limit is exceeded.
///
/// Only the error itself counts, not its sources: a service that has worked and returns the rejection of a dependency as the
/// source of its own error was called.
pub fn is_rejection(error: &BoxError) -> bool {
    let is_rejection = false;
    #[cfg(feature = "breaker")]
    let is_rejection = is_rejection || error.is::<crate::breaker::BreakerOpen>();
    #[cfg(feature = "bulkhead")]
    let is_rejection = is_rejection || error.is::<crate::bulkhead::BulkheadFull>();
    #[cfg(feature = "load_shed")]
    let is_rejection = is_rejection || error.is::<crate::load_shed::Overload>();
    #[cfg(feature = "rate_limit")]
    let is_rejection = is_rejection || error.is::<crate::rate_limit::RateLimited>();
    #[cfg(feature = "thread_pool")]
    let is_rejection = is_rejection || error.is::<crate::thread_pool::ThreadPoolFull>();
    let _ = error;
    is_rejection
}

/// What an error says about the service that was called. A rejection by a layer and a deadline of the caller that has passed
/// say nothing; a timeout and any other error are failures.
pub fn error_outcome(error: &BoxError) -> CallOutcome {
    #[cfg(feature = "deadline")]
    if find_cause::<crate::deadline::DeadlineExceeded>(error).is_some() {
        return CallEnd::Cancelled.outcome();
    }
    let end = if is_rejection(error) { CallEnd::Cancelled } else { CallEnd::Reset };
    end.outcome()
}
