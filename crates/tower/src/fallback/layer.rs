//! The layers.

use tower_layer::Layer;

use super::service::{FallbackService, SecondaryService};
use crate::clone_request::CloneBody;
use crate::error::LayerError;

/// Replaces errors by responses.
#[derive(Clone, Debug)]
pub struct FallbackLayer<F> {
    respond: F,
}

impl<F> FallbackLayer<F> {
    /// `respond` gets the error and returns a response, or the error if it has no other response for it:
    /// `Fn(LayerError) -> Result<Response, LayerError>`.
    pub fn new<T>(respond: F) -> Self
    where
        F: Fn(LayerError) -> Result<T, LayerError>,
    {
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
pub struct FallbackServiceLayer<T, W, C = CloneBody> {
    secondary: T,
    when: W,
    copy: C,
}

impl<T, W> FallbackServiceLayer<T, W> {
    /// Sends requests to `secondary` whose error `when` selects: `Fn(&LayerError) -> bool`.
    ///
    /// The request is cloned before each call. [`is_rejection`](crate::is_rejection) selects the requests that no service has
    /// received, which is safe for all of them; other errors only suit idempotent requests.
    pub fn new(secondary: T, when: W) -> Self
    where
        W: Fn(&LayerError) -> bool,
    {
        Self { secondary, when, copy: CloneBody }
    }

    /// Copies requests in another way, for bodies that are not `Clone`. A request without a copy is only sent to the first service.
    pub fn clone_with<C>(self, copy: C) -> FallbackServiceLayer<T, W, C> {
        FallbackServiceLayer { secondary: self.secondary, when: self.when, copy }
    }
}

impl<S, T: Clone, W: Clone, C: Clone> Layer<S> for FallbackServiceLayer<T, W, C> {
    type Service = SecondaryService<S, T, W, C>;

    fn layer(&self, primary: S) -> Self::Service {
        let Self { secondary, when, copy } = self.clone();
        SecondaryService { primary, secondary, when, copy }
    }
}
