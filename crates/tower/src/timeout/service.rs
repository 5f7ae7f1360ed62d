//! The service.

use std::task::{Context, Poll};
use std::time::Duration;

use tower_service::Service;

use super::future::TimeoutFuture;
use crate::error::{BoxError, LayerError};
use crate::ready::ReadyWait;

/// A service with a timeout for each call.
#[derive(Clone, Debug)]
pub struct TimeoutService<S> {
    pub(super) inner: S,
    pub(super) after: Duration,
    pub(super) ready_wait: ReadyWait,
}

impl<S, R> Service<R> for TimeoutService<S>
where
    S: Service<R>,
    S::Error: Into<BoxError> + 'static,
{
    type Response = S::Response;
    type Error = LayerError;
    type Future = TimeoutFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        let inner = self.inner.poll_ready(cx);
        self.ready_wait.poll(inner, || Some(self.after), cx)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        if self.ready_wait.take_expired() {
            return TimeoutFuture::expired(self.after);
        }
        TimeoutFuture::new(self.inner.call(request), self.after)
    }
}
