//! The future of a call.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

use super::error::AttemptTimeout;
use crate::error::{BoxError, LayerError};

pin_project! {
    /// A call with a timeout. The time starts when the call is polled for the first time.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct TimeoutFuture<F> {
        // `None` if the service did not become ready in time.
        #[pin]
        inner: Option<F>,
        after: Duration,
        // Set when the call has to wait: most timers would be created for nothing otherwise.
        #[pin]
        timer: Option<Sleep>,
    }
}

impl<F> TimeoutFuture<F> {
    pub(super) fn new(inner: F, after: Duration) -> Self {
        Self { inner: Some(inner), after, timer: None }
    }

    pub(super) fn expired(after: Duration) -> Self {
        Self { inner: None, after, timer: None }
    }
}

impl<F, T, E> Future for TimeoutFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError> + 'static,
{
    type Output = Result<T, LayerError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(Err(LayerError::new(AttemptTimeout { after: *this.after })));
        };
        if let Poll::Ready(result) = inner.poll(cx) {
            return Poll::Ready(result.map_err(LayerError::new));
        }
        if this.timer.is_none() {
            this.timer.set(Some(sleep(*this.after)));
        }
        let Some(timer) = this.timer.as_pin_mut() else { return Poll::Pending };
        timer.poll(cx).map(|()| Err(LayerError::new(AttemptTimeout { after: *this.after })))
    }
}
