//! The service.

use std::mem;
use std::task::{Context, Poll};

use tower_service::Service;

use super::future::BulkheadFuture;
use super::handle::Bulkhead;
use crate::error::{BoxError, LayerError};

/// A service with a bound on its calls in flight.
#[derive(Clone, Debug)]
pub struct BulkheadService<S> {
    pub(super) inner: S,
    pub(super) bulkhead: Bulkhead,
}

impl<S, R> Service<R> for BulkheadService<S>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError> + 'static,
{
    type Response = S::Response;
    type Error = LayerError;
    type Future = BulkheadFuture<S, R>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        self.inner.poll_ready(cx).map_err(LayerError::new)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        match self.bulkhead.acquire().into_ready() {
            Ok(Ok(permit)) => BulkheadFuture::called(self.inner.call(request), permit),
            Ok(Err(full)) => BulkheadFuture::rejected(full),
            Err(acquire) => {
                // The future takes the service that is ready; a clone need not be.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                BulkheadFuture::waiting(acquire, ready, request)
            }
        }
    }
}
