//! The future of a call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::error::BulkheadFull;
use super::handle::{BulkheadAcquire, BulkheadPermit};
use crate::error::{BoxError, LayerError};

pin_project! {
    /// A call that runs, waits for a permit, or was rejected.
    #[must_use = "futures do nothing unless polled"]
    pub struct BulkheadFuture<S, R>
    where
        S: Service<R>,
    {
        #[pin]
        state: CallState<S, R>,
    }
}

pin_project! {
    #[project = CallStateProjection]
    enum CallState<S, R>
    where
        S: Service<R>,
    {
        Waiting {
            acquire: BulkheadAcquire,
            // `None` once the call is made.
            call: Option<(S, R)>,
        },
        Called {
            #[pin]
            inner: S::Future,
            // Returned as soon as the call has ended.
            permit: Option<BulkheadPermit>,
        },
        Rejected {
            full: BulkheadFull,
        },
    }
}

impl<S: Service<R>, R> BulkheadFuture<S, R> {
    pub(super) fn called(inner: S::Future, permit: BulkheadPermit) -> Self {
        Self { state: CallState::Called { inner, permit: Some(permit) } }
    }

    pub(super) fn waiting(acquire: BulkheadAcquire, ready: S, request: R) -> Self {
        Self { state: CallState::Waiting { acquire, call: Some((ready, request)) } }
    }

    pub(super) fn rejected(full: BulkheadFull) -> Self {
        Self { state: CallState::Rejected { full } }
    }
}

impl<S, R> Future for BulkheadFuture<S, R>
where
    S: Service<R>,
    S::Error: Into<BoxError> + 'static,
{
    type Output = Result<S::Response, LayerError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                CallStateProjection::Called { inner, permit } => {
                    let result = ready!(inner.poll(cx));
                    *permit = None;
                    return Poll::Ready(result.map_err(LayerError::new));
                }
                CallStateProjection::Waiting { acquire, call } => {
                    let permit = match ready!(Pin::new(acquire).poll(cx)) {
                        Ok(permit) => permit,
                        Err(full) => return Poll::Ready(Err(LayerError::new(full))),
                    };
                    let Some((mut service, request)) = call.take() else { return Poll::Pending };
                    let inner = service.call(request);
                    state.set(CallState::Called { inner, permit: Some(permit) });
                }
                CallStateProjection::Rejected { full } => return Poll::Ready(Err(LayerError::new(*full))),
            }
        }
    }
}
