//! The layers.

use tower_layer::Layer;

use super::service::{FallbackService, SecondaryService};

/// Replaces errors by responses.
#[derive(Clone, Debug)]
pub struct FallbackLayer<F> {
    respond: F,
}

impl<F> FallbackLayer<F> {
    /// `respond` gets the error and returns a response, or the error if it has no other response for it:
    /// `Fn(BoxError) -> Result<Response, BoxError>`.
    pub fn new(respond: F) -> Self {
        Self { respond }
    }
}

impl<S, F: Clone> Layer<S> for FallbackLayer<F> {
    type Service = FallbackService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        FallbackService { inner, respond: self.respond.clone() }
    }
}

/// Sends requests that failed to another service.
#[derive(Clone, Debug)]
pub struct FallbackServiceLayer<T, W> {
    secondary: T,
    when: W,
}

impl<T, W> FallbackServiceLayer<T, W> {
    /// Sends requests to `secondary` whose error `when` selects: `Fn(&BoxError) -> bool`.
    ///
    /// The request is cloned before each call. [`is_rejection`](crate::is_rejection) selects the requests that no service has
    /// received, which is safe for all of them; other errors only suit idempotent requests.
    pub fn new(secondary: T, when: W) -> Self {
        Self { secondary, when }
    }
}

impl<S, T: Clone, W: Clone> Layer<S> for FallbackServiceLayer<T, W> {
    type Service = SecondaryService<S, T, W>;

    fn layer(&self, primary: S) -> Self::Service {
        SecondaryService { primary, secondary: self.secondary.clone(), when: self.when.clone() }
    }
}
