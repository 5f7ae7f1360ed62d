//! The services.

use std::task::{Context, Poll};

use tower_service::Service;

use super::future::{FallbackFuture, FallbackServiceFuture};
use crate::clone_request::CloneRequest;
use crate::error::{BoxError, LayerError};

/// A service whose errors a closure may replace.
#[derive(Clone, Debug)]
pub struct FallbackService<S, F> {
    pub(super) inner: S,
    pub(super) respond: F,
}

impl<S, F, R> Service<R> for FallbackService<S, F>
where
    S: Service<R>,
    S::Error: Into<BoxError> + 'static,
    F: Fn(LayerError) -> Result<S::Response, LayerError> + Clone,
{
    type Response = S::Response;
    type Error = LayerError;
    type Future = FallbackFuture<S::Future, F>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        self.inner.poll_ready(cx).map_err(LayerError::new)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        FallbackFuture::new(self.inner.call(request), self.respond.clone())
    }
}

/// A service with another one for the requests that it rejects.
#[derive(Clone, Debug)]
pub struct SecondaryService<S, T, W, C> {
    pub(super) primary: S,
    pub(super) secondary: T,
    pub(super) when: W,
    pub(super) copy: C,
}

impl<S, T, W, C, R> Service<R> for SecondaryService<S, T, W, C>
where
    S: Service<R>,
    S::Error: Into<BoxError> + 'static,
    T: Service<R, Response = S::Response> + Clone,
    T::Error: Into<BoxError> + 'static,
    W: Fn(&LayerError) -> bool + Clone,
    C: CloneRequest<R>,
{
    type Response = S::Response;
    type Error = LayerError;
    type Future = FallbackServiceFuture<S::Future, T, W, R>;

    /// Only the primary service must be ready; the future waits for the secondary one.
    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        self.primary.poll_ready(cx).map_err(LayerError::new)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let copy = self.copy.clone_request(&request);
        let secondary = copy.map(|copy| (self.secondary.clone(), copy));
        FallbackServiceFuture::new(self.primary.call(request), secondary, self.when.clone())
    }
}
