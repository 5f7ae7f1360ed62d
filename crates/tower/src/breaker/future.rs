//! The future of a call.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate_core::CallOutcome;

use super::classify::Classify;
use super::error::BreakerOpen;
use super::handle::BreakerPermit;
use crate::error::{BoxError, LayerError};

pin_project! {
    /// A call that the breaker admitted or rejected.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct BreakerFuture<F, C> {
        #[pin]
        state: CallState<F, C>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = CallStateProjection]
    enum CallState<F, C> {
        Called {
            #[pin]
            inner: F,
            permit: BreakerPermit,
            classifier: C,
        },
        Rejected {
            open: BreakerOpen,
        },
    }
}

/// Runs a part of a call. If it panics, the call has failed.
#[inline]
pub(super) fn count_panic<T>(permit: Option<&mut BreakerPermit>, part: impl FnOnce() -> T) -> T {
    struct Unwinding<'a>(Option<&'a mut BreakerPermit>);

    impl Drop for Unwinding<'_> {
        fn drop(&mut self) {
            if let Some(permit) = &mut self.0 {
                permit.end(CallOutcome::Failure, || true);
            }
        }
    }

    let unwinding = Unwinding(permit);
    let result = part();
    mem::forget(unwinding);
    result
}

impl<F, C> BreakerFuture<F, C> {
    pub(super) fn new(inner: F, permit: BreakerPermit, classifier: C) -> Self {
        Self { state: CallState::Called { inner, permit, classifier } }
    }

    pub(super) fn rejected(open: BreakerOpen) -> Self {
        Self { state: CallState::Rejected { open } }
    }
}

impl<F, C, T, E> Future for BreakerFuture<F, C>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError> + 'static,
    C: Classify<T>,
{
    type Output = Result<T, LayerError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            CallStateProjection::Called { inner, permit, classifier } => {
                let result = ready!(count_panic(Some(permit), || inner.poll(cx))).map_err(LayerError::new);
                permit.end(classifier.classify(result.as_ref()), || true);
                Poll::Ready(result)
            }
            CallStateProjection::Rejected { open } => Poll::Ready(Err(LayerError::new(*open))),
        }
    }
}
