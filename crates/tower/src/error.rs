//! Errors of layers: what they say about the service that was called.
//!
//! The error of every layer is a [`LayerError`]. It holds one small struct for each cause, or the error of the inner service as it
//! was. So a stack of any depth has one error type, and a cause is found with [`LayerError::is`] or [`find_cause`]. A call that
//! succeeds allocates nothing for it.

use std::any::{Any, TypeId};
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
    #[inline]
    pub fn new<E: Into<BoxError> + 'static>(error: E) -> Self {
        // Which of these it is, is known when this is compiled.
        let kind = TypeId::of::<E>();
        if kind == TypeId::of::<Self>() {
            let mut same = Some(error);
            let same = (&mut same as &mut dyn Any).downcast_mut::<Option<Self>>().and_then(Option::take);
            return same.unwrap_or_else(|| unreachable!("it has this type"));
        }
        let error = error.into();
        if kind == TypeId::of::<BoxError>() {
            // Services between two layers may have boxed it, as those of tower do.
            return error.downcast::<Self>().map_or_else(Self, |same| *same);
        }
        Self(error)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Error)]
    #[error("the connection broke")]
    struct Broken;

    #[derive(Debug, Error)]
    #[error("the next service failed")]
    struct NextFailed(#[source] LayerError);

    #[test]
    fn layer_error_of_a_layer_error_boxed_or_not_is_the_same() {
        let error = LayerError::new(Broken);
        assert!(error.is::<Broken>() && error.to_string() == "the connection broke");
        let again = LayerError::new(error);
        assert!(again.is::<Broken>());
        let boxed = LayerError::new(BoxError::from(again));
        assert!(boxed.is::<Broken>());
        assert!(boxed.into_cause().is::<Broken>());
        assert!(LayerError::new(BoxError::from(Broken)).is::<Broken>());
    }

    #[test]
    fn find_cause_sees_through_the_layer_error_of_another_service() {
        let error = LayerError::new(NextFailed(LayerError::new(Broken)));
        assert!(!error.is::<Broken>() && find_cause::<Broken>(&error).is_some());
        assert_eq!(error.source().map(ToString::to_string), Some("the connection broke".to_owned()));
    }
}
