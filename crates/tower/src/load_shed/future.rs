//! The future of a call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::error::Overload;
use super::handle::LoadShedPermit;
use crate::error::BoxError;

pin_project! {
    /// A call that was admitted or rejected.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct LoadShedFuture<F> {
        #[pin]
        state: CallState<F>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = CallStateProjection]
    enum CallState<F> {
        Called {
            #[pin]
            inner: F,
            // `None` once the call has ended.
            permit: Option<LoadShedPermit>,
        },
        Rejected {
            overload: Overload,
        },
    }
}

impl<F> LoadShedFuture<F> {
    pub(super) fn called(inner: F, permit: LoadShedPermit) -> Self {
        Self { state: CallState::Called { inner, permit: Some(permit) } }
    }

    pub(super) fn rejected(overload: Overload) -> Self {
        Self { state: CallState::Rejected { overload } }
    }
}

impl<F, T, E> Future for LoadShedFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            CallStateProjection::Called { inner, permit } => {
                let result = ready!(inner.poll(cx)).map_err(Into::into);
                let permit = permit.take();
                // A call that failed or that an inner layer rejected took no time; it would make the service look fast.
                let is_measured = result.as_ref().err().is_none_or(is_timeout);
                if let Some(permit) = permit.filter(|_| is_measured) {
                    permit.record();
                }
                Poll::Ready(result)
            }
            CallStateProjection::Rejected { overload } => Poll::Ready(Err((*overload).into())),
        }
    }
}

/// Whether the service took longer than a timeout layer allows.
fn is_timeout(error: &BoxError) -> bool {
    #[cfg(feature = "timeout")]
    if crate::error::find_cause::<crate::timeout::AttemptTimeout>(error).is_some() {
        return true;
    }
    let _ = error;
    false
}
