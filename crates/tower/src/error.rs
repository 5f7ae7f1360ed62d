//! Errors of layers: what they say about the service that was called.
//!
//! The error of every layer is a [`LayerError`]. It holds one small struct for each cause, or the error of the inner service as it
//! was. So a stack of any depth has one error type, and a cause is found with [`LayerError::is`] or [`find_cause`]. A call that
//! succeeds allocates nothing for it.

use std::any::Any;
use std::error::Error;

use thiserror::Error;
use tidegate_core::{CallEnd, CallOutcome};

/// Any error: what the error of a service below the layers must convert into.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The error of every layer: its own cause, or the error of the service below as it was. Text and sources are those of the cause.
///
/// A type of its own instead of a box: the compiler cannot prove that a future whose error is a `dyn Error` is `Send` through a
/// stack of layers ("implementation of `From` is not general enough").
#[derive(Debug, Error)]
#[error(transparent)]
pub struct LayerError(BoxError);

impl LayerError {
    /// The error of a service. The error of another layer stays as it is.
    pub fn new(error: impl Into<BoxError> + 'static) -> Self {
        let mut error = Some(error);
        let same = (&mut error as &mut dyn Any).downcast_mut::<Option<Self>>();
        if let Some(same) = same.and_then(Option::take) {
            return same;
        }
        let Some(error) = error else { unreachable!("only an error of this type is taken") };
        // Services between two layers may have boxed it, as those of tower do.
        error.into().downcast::<Self>().map_or_else(Self, |same| *same)
    }

    /// Whether the cause is an `E`. Its sources do not count; see [`find_cause`].
    pub fn is<E: Error + 'static>(&self) -> bool {
        self.0.is::<E>()
    }

    /// The cause, if it is an `E`.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }

    /// The cause.
    pub fn into_cause(self) -> BoxError {
        self.0
    }
}

impl From<BoxError> for LayerError {
    fn from(error: BoxError) -> Self {
        Self::new(error)
    }
}

/// Finds an error of type `E`: the cause itself or one of its sources.
pub fn find_cause<E: Error + 'static>(error: &LayerError) -> Option<&E> {
    let mut next: Option<&(dyn Error + 'static)> = Some(&*error.0);
    while let Some(cause) = next {
        // An error of the application may have the error of a layer as its source.
        let cause = cause.downcast_ref().map_or(cause, |error: &LayerError| &*error.0);
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
pub fn is_rejection(error: &LayerError) -> bool {
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
pub fn error_outcome(error: &LayerError) -> CallOutcome {
    #[cfg(feature = "deadline")]
    if find_cause::<crate::deadline::DeadlineExceeded>(error).is_some() {
        return CallEnd::Cancelled.outcome();
    }
    let end = if is_rejection(error) { CallEnd::Cancelled } else { CallEnd::Reset };
    end.outcome()
}
