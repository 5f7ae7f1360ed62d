//! The service.

use std::task::{Context, Poll};

use tidegate_core::BreakerState;
use tower_service::Service;

use super::classify::Classify;
use super::error::BreakerOpen;
use super::future::{BreakerFuture, count_panic};
use super::handle::{BreakerPermit, CircuitBreaker};
use crate::error::{BoxError, LayerError, error_outcome};

/// A service with a circuit breaker.
#[derive(Debug)]
pub struct BreakerService<S, C> {
    pub(super) inner: S,
    pub(super) breaker: CircuitBreaker,
    pub(super) classifier: C,
    /// Whether the inner service was not ready when the breaker last rejected calls.
    pub(super) is_unready: bool,
}

impl<S: Clone, C: Clone> Clone for BreakerService<S, C> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            breaker: self.breaker.clone(),
            classifier: self.classifier.clone(),
            is_unready: false,
        }
    }
}

impl<S, C> BreakerService<S, C> {
    /// Admits a call, or rejects it.
    #[inline]
    pub(super) fn try_acquire(&self) -> Result<BreakerPermit, BreakerOpen> {
        if self.is_unready {
            return Err(self.unready());
        }
        self.breaker.try_acquire()
    }

    /// The rejection of a call that the inner service is not ready for.
    #[cold]
    fn unready(&self) -> BreakerOpen {
        match self.breaker.try_acquire() {
            // The open time has ended, but the inner service has not become ready since then.
            Ok(_) => BreakerOpen { retry_after: None },
            Err(open) => open,
        }
    }

    /// Completes the readiness of the inner service. Its error counts as a failure of the service. While the breaker rejects
    /// calls, nothing waits.
    #[inline]
    pub(super) fn ready<E: Into<BoxError> + 'static>(
        &mut self,
        inner: Poll<Result<(), E>>,
    ) -> Poll<Result<(), LayerError>> {
        match inner {
            Poll::Ready(Ok(())) => {
                self.is_unready = false;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.failed(LayerError::new(error)))),
            Poll::Pending => self.wait(),
        }
    }

    #[cold]
    fn failed(&mut self, error: LayerError) -> LayerError {
        self.is_unready = false;
        if let Ok(permit) = self.breaker.try_acquire() {
            permit.record(error_outcome(&error));
        }
        error
    }

    #[cold]
    fn wait(&mut self) -> Poll<Result<(), LayerError>> {
        self.is_unready = matches!(self.breaker.state(), BreakerState::Open | BreakerState::ForcedOpen);
        if self.is_unready { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl<S, C, R> Service<R> for BreakerService<S, C>
where
    S: Service<R>,
    S::Error: Into<BoxError> + 'static,
    C: Classify<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = LayerError;
    type Future = BreakerFuture<S::Future, C>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        let inner = self.inner.poll_ready(cx);
        self.ready(inner)
    }

    #[expect(clippy::inline_always, reason = "the future is large and is best built in place")]
    #[inline(always)]
    fn call(&mut self, request: R) -> Self::Future {
        match self.try_acquire() {
            Ok(mut permit) => {
                let inner = count_panic(Some(&mut permit), || self.inner.call(request));
                BreakerFuture::new(inner, permit, self.classifier.clone())
            }
            Err(open) => BreakerFuture::rejected(open),
        }
    }
}
