//! The future of a call.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::futures::TaskLocalFuture;
use tokio::time::{Sleep, sleep};

use super::error::DeadlineExceeded;
use super::handle::Deadline;
use crate::error::{BoxError, LayerError};

pin_project! {
    /// A call that ends at its deadline.
    #[must_use = "futures do nothing unless polled"]
    pub struct DeadlineFuture<F> {
        #[pin]
        state: CallState<F>,
    }
}

pin_project! {
    #[project = CallStateProjection]
    enum CallState<F> {
        Unbounded {
            #[pin]
            inner: F,
        },
        Bounded {
            #[pin]
            inner: TaskLocalFuture<Deadline, F>,
            #[pin]
            timer: Sleep,
        },
        Passed,
    }
}

impl<F> DeadlineFuture<F> {
    pub(super) fn unbounded(inner: F) -> Self {
        Self { state: CallState::Unbounded { inner } }
    }

    pub(super) fn bounded(inner: TaskLocalFuture<Deadline, F>, remaining: Duration) -> Self {
        Self { state: CallState::Bounded { inner, timer: sleep(remaining) } }
    }

    pub(super) fn passed() -> Self {
        Self { state: CallState::Passed }
    }
}

impl<F, T, E> Future for DeadlineFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError> + 'static,
{
    type Output = Result<T, LayerError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        match state.as_mut().project() {
            CallStateProjection::Unbounded { inner } => return inner.poll(cx).map_err(LayerError::new),
            CallStateProjection::Bounded { inner, timer } => {
                if let Poll::Ready(result) = inner.poll(cx) {
                    return Poll::Ready(result.map_err(LayerError::new));
                }
                if timer.poll(cx).is_pending() {
                    return Poll::Pending;
                }
                // Dropping the inner future cancels the work at once.
                state.set(CallState::Passed);
            }
            CallStateProjection::Passed => {}
        }
        Poll::Ready(Err(LayerError::new(DeadlineExceeded)))
    }
}
