//! The service.

use std::task::{Context, Poll};

use tower_service::Service;

use super::classify::Classify;
use super::future::BreakerFuture;
use super::handle::CircuitBreaker;
use crate::error::BoxError;

/// A service with a circuit breaker.
#[derive(Clone, Debug)]
pub struct BreakerService<S, C> {
    pub(super) inner: S,
    pub(super) breaker: CircuitBreaker,
    pub(super) classifier: C,
}

impl<S, C, R> Service<R> for BreakerService<S, C>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    C: Classify<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BreakerFuture<S::Future, C>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        match self.breaker.try_acquire() {
            Ok(permit) => BreakerFuture::new(self.inner.call(request), permit, self.classifier.clone()),
            Err(open) => BreakerFuture::rejected(open),
        }
    }
}
