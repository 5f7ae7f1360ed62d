//! The services.

use std::task::{Context, Poll};

use tower_service::Service;

use super::future::{FallbackFuture, FallbackServiceFuture};
use crate::error::BoxError;

/// A service whose errors a closure may replace.
#[derive(Clone, Debug)]
pub struct FallbackService<S, F> {
    pub(super) inner: S,
    pub(super) respond: F,
}

impl<S, F, R> Service<R> for FallbackService<S, F>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    F: Fn(BoxError) -> Result<S::Response, BoxError> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = FallbackFuture<S::Future, F>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        FallbackFuture::new(self.inner.call(request), self.respond.clone())
    }
}

/// A service with another one for the requests that it rejects.
#[derive(Clone, Debug)]
pub struct SecondaryService<S, T, W> {
    pub(super) primary: S,
    pub(super) secondary: T,
    pub(super) when: W,
}

impl<S, T, W, R> Service<R> for SecondaryService<S, T, W>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    T: Service<R, Response = S::Response> + Clone,
    T::Error: Into<BoxError>,
    W: Fn(&BoxError) -> bool + Clone,
    R: Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = FallbackServiceFuture<S::Future, T, W, R>;

    /// Only the primary service must be ready; the future waits for the secondary one.
    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.primary.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let primary = self.primary.call(request.clone());
        FallbackServiceFuture::new(primary, self.secondary.clone(), request, self.when.clone())
    }
}
