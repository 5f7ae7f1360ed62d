//! What the result of a call says about the service.

use http::Response;
use tidegate_core::{CallEnd, CallOutcome};

use crate::error::{LayerError, error_outcome};

/// Decides what the result of a call says about the service. Closures implement it.
pub trait Classify<T> {
    /// The outcome of a call with this result.
    fn classify(&self, result: Result<&T, &LayerError>) -> CallOutcome;
}

impl<T, F> Classify<T> for F
where
    F: Fn(Result<&T, &LayerError>) -> CallOutcome,
{
    fn classify(&self, result: Result<&T, &LayerError>) -> CallOutcome {
        self(result)
    }
}

/// Classifies HTTP responses by their status: 5xx is a failure, 4xx (429 included) is neutral. Errors as in [`ByError`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ByStatus;

impl<B> Classify<Response<B>> for ByStatus {
    #[inline]
    fn classify(&self, result: Result<&Response<B>, &LayerError>) -> CallOutcome {
        match result {
            Ok(response) => CallEnd::Status(response.status().as_u16()).outcome(),
            Err(error) => error_outcome(error),
        }
    }
}

/// Counts every response as a success, and errors by [`error_outcome`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ByError;

impl<T> Classify<T> for ByError {
    #[inline]
    fn classify(&self, result: Result<&T, &LayerError>) -> CallOutcome {
        result.map_or_else(error_outcome, |_| CallOutcome::Success)
    }
}
