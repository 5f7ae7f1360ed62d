//! The future of a call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::error::Overload;
use super::handle::LoadShedPermit;
use super::measure::MeasureLatency;
use crate::error::{BoxError, LayerError};

pin_project! {
    /// A call that was admitted or rejected.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct LoadShedFuture<F, M> {
        #[pin]
        state: CallState<F, M>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = CallStateProjection]
    enum CallState<F, M> {
        Called {
            #[pin]
            inner: F,
            // `None` once the call has ended.
            permit: Option<LoadShedPermit>,
            measure: M,
        },
        Rejected {
            overload: Overload,
        },
    }
}

impl<F, M> LoadShedFuture<F, M> {
    pub(super) fn called(inner: F, permit: LoadShedPermit, measure: M) -> Self {
        Self { state: CallState::Called { inner, permit: Some(permit), measure } }
    }

    pub(super) fn rejected(overload: Overload) -> Self {
        Self { state: CallState::Rejected { overload } }
    }
}

impl<F, M, T, E> Future for LoadShedFuture<F, M>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError> + 'static,
    M: MeasureLatency<T>,
{
    type Output = Result<T, LayerError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            CallStateProjection::Called { inner, permit, measure } => {
                let result = ready!(inner.poll(cx)).map_err(LayerError::new);
                let permit = permit.take();
                // A call that failed or that an inner layer rejected took no time; it would make the service look fast.
                let is_measured = match &result {
                    Ok(response) => measure.counts(response),
                    Err(error) => is_timeout(error),
                };
                if let Some(permit) = permit.filter(|_| is_measured) {
                    permit.record();
                }
                Poll::Ready(result)
            }
            CallStateProjection::Rejected { overload } => Poll::Ready(Err(LayerError::new(*overload))),
        }
    }
}

/// Whether the service took longer than a timeout layer allows.
fn is_timeout(error: &LayerError) -> bool {
    #[cfg(feature = "timeout")]
    if crate::error::find_cause::<crate::timeout::AttemptTimeout>(error).is_some() {
        return true;
    }
    let _ = error;
    false
}
