//! The futures of work and of calls.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tokio::sync::oneshot;

use super::error::{ThreadPoolError, ThreadPoolFull, ThreadPoolPanic};
use super::handle::WorkQueue;
use crate::error::{BoxError, LayerError};

/// Work in a thread pool. Dropping it cancels work that has not started.
#[derive(Debug)]
#[must_use = "dropping it cancels the work"]
pub struct ThreadPoolWork<T> {
    state: WorkState<T>,
}

#[derive(Debug)]
enum WorkState<T> {
    Queued { queue: Arc<WorkQueue>, number: u64, result: oneshot::Receiver<Result<T, ThreadPoolPanic>> },
    Rejected(ThreadPoolFull),
    Done,
}

impl<T> ThreadPoolWork<T> {
    pub(super) fn queued(
        queue: Arc<WorkQueue>,
        number: u64,
        result: oneshot::Receiver<Result<T, ThreadPoolPanic>>,
    ) -> Self {
        Self { state: WorkState::Queued { queue, number, result } }
    }

    pub(super) fn rejected(full: ThreadPoolFull) -> Self {
        Self { state: WorkState::Rejected(full) }
    }
}

impl<T> Future for ThreadPoolWork<T> {
    type Output = Result<T, ThreadPoolError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.state {
            // The sender is dropped unused only if a thread ended, which work cannot cause.
            WorkState::Queued { result, .. } => {
                ready!(Pin::new(result).poll(cx)).unwrap_or(Err(ThreadPoolPanic)).map_err(Into::into)
            }
            WorkState::Rejected(full) => Err((*full).into()),
            WorkState::Done => return Poll::Pending,
        };
        self.state = WorkState::Done;
        Poll::Ready(result)
    }
}

impl<T> Drop for ThreadPoolWork<T> {
    fn drop(&mut self) {
        if let WorkState::Queued { queue, number, .. } = &self.state {
            queue.cancel(*number);
        }
    }
}

pin_project! {
    /// A call of a blocking function.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ThreadPoolFuture<T, E> {
        #[pin]
        work: ThreadPoolWork<Result<T, E>>,
    }
}

impl<T, E> ThreadPoolFuture<T, E> {
    pub(super) fn new(work: ThreadPoolWork<Result<T, E>>) -> Self {
        Self { work }
    }
}

impl<T, E: Into<BoxError> + 'static> Future for ThreadPoolFuture<T, E> {
    type Output = Result<T, LayerError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.project().work.poll(cx));
        Poll::Ready(
            result.map_err(ThreadPoolError::into_cause).and_then(|result| result.map_err(LayerError::new)),
        )
    }
}
