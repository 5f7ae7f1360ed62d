//! The future of a call.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate_core::CallOutcome;

use super::classify::Classify;
use super::error::BreakerOpen;
use super::handle::BreakerPermit;
use crate::error::BoxError;

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
            // `None` once the result is recorded.
            permit: Option<BreakerPermit>,
            classifier: C,
        },
        Rejected {
            open: BreakerOpen,
        },
    }
}

/// Runs a part of a call. If it panics, the call has failed.
#[inline]
pub(super) fn count_panic<T>(permit: &mut Option<BreakerPermit>, part: impl FnOnce() -> T) -> T {
    struct Unwinding<'a>(&'a mut Option<BreakerPermit>);

    impl Drop for Unwinding<'_> {
        fn drop(&mut self) {
            if let Some(permit) = self.0.take() {
                permit.record(CallOutcome::Failure);
            }
        }
    }

    let unwinding = Unwinding(permit);
    let result = part();
    mem::forget(unwinding);
    result
}

impl<F, C> BreakerFuture<F, C> {
    pub(super) fn new(inner: F, permit: Option<BreakerPermit>, classifier: C) -> Self {
        Self { state: CallState::Called { inner, permit, classifier } }
    }

    pub(super) fn rejected(open: BreakerOpen) -> Self {
        Self { state: CallState::Rejected { open } }
    }
}

impl<F, C, T, E> Future for BreakerFuture<F, C>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
    C: Classify<T>,
{
    type Output = Result<T, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            CallStateProjection::Called { inner, permit, classifier } => {
                let result = ready!(count_panic(permit, || inner.poll(cx))).map_err(Into::into);
                if let Some(permit) = permit.take() {
                    permit.record(classifier.classify(result.as_ref()));
                }
                Poll::Ready(result)
            }
            CallStateProjection::Rejected { open } => Poll::Ready(Err((*open).into())),
        }
    }
}
