//! The future of a call.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tidegate_headers::is_rejected_by_upstream;
use tidegate_limiter::Limiter;
use tidegate_store::Store;
use tower_service::Service;

use super::check::{AdmittedCall, PolicyVerdict};
use crate::error::{BoxError, is_rejection};
use crate::served::{HandlerMark, ServedCall};

/// The check of a request. Its type cannot be named, because it borrows the policy.
type PendingCheck<B, T, D> = Pin<Box<dyn Future<Output = PolicyVerdict<B, T, D>> + Send>>;
/// A result whose reservations are being settled.
type PendingSettlement<T> = Pin<Box<dyn Future<Output = Result<Response<T>, BoxError>> + Send>>;

pin_project! {
    /// A call that is checked, served and settled.
    #[must_use = "futures do nothing unless polled"]
    pub struct PolicyFuture<S, B, T, D>
    where
        S: Service<Request<B>>,
        D: Store,
        D: 'static,
    {
        #[pin]
        state: CallState<S, B, T, D>,
        limiter: Arc<Limiter<D>>,
        served: ServedCall,
    }
}

pin_project! {
    #[project = CallStateProjection]
    enum CallState<S, B, T, D>
    where
        S: Service<Request<B>>,
        D: Store,
        D: 'static,
    {
        Unchecked {
            check: PendingCheck<B, T, D>,
            // `None` once it is called.
            ready: Option<S>,
        },
        Called {
            #[pin]
            inner: S::Future,
            admitted: Option<AdmittedCall<D>>,
        },
        Settling {
            settlement: PendingSettlement<T>,
        },
    }
}

impl<S, B, T, D> PolicyFuture<S, B, T, D>
where
    S: Service<Request<B>>,
    D: Store + 'static,
{
    pub(super) fn new(
        check: PendingCheck<B, T, D>,
        ready: S,
        limiter: Arc<Limiter<D>>,
        mark: Option<HandlerMark>,
    ) -> Self {
        let state = CallState::Unchecked { check, ready: Some(ready) };
        Self { state, limiter, served: ServedCall::new(mark) }
    }
}

/// Completes a result: headers, refund, settlement.
fn complete<T, D>(
    limiter: &Arc<Limiter<D>>,
    mut admitted: AdmittedCall<D>,
    mut result: Result<Response<T>, BoxError>,
    served: &ServedCall,
) -> Result<Result<Response<T>, BoxError>, PendingSettlement<T>>
where
    T: Send + 'static,
    D: Store + 'static,
{
    let is_rejected = result.as_ref().err().is_some_and(is_rejection) && served.is_unserved();
    if is_rejected {
        admitted.refund();
    }
    if let Ok(response) = &mut result
        && !is_rejected_by_upstream(response.status(), response.headers())
    {
        admitted.headers.insert_into(response.headers_mut());
    }
    let reservations = std::mem::take(&mut admitted.reservations);
    if reservations.is_empty() {
        return Ok(result);
    }
    let limiter = Arc::clone(limiter);
    Err(Box::pin(async move {
        match result {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                limiter.settle(reservations, parts.status.as_u16(), &parts.headers).await;
                Ok(Response::from_parts(parts, body))
            }
            Err(error) => {
                if is_rejected {
                    limiter.release(reservations).await;
                }
                Err(error)
            }
        }
    }))
}

impl<S, B, T, D> Future for PolicyFuture<S, B, T, D>
where
    S: Service<Request<B>, Response = Response<T>>,
    S::Error: Into<BoxError>,
    D: Store + 'static,
    T: Send + 'static,
{
    type Output = Result<Response<T>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                CallStateProjection::Unchecked { check, ready } => {
                    let (request, admitted) = match ready!(check.as_mut().poll(cx)) {
                        Ok(admitted) => admitted,
                        Err(response) => return Poll::Ready(Ok(response)),
                    };
                    let Some(mut service) = ready.take() else { return Poll::Pending };
                    let inner = this.served.observe(|| service.call(request));
                    this.state.set(CallState::Called { inner, admitted: Some(admitted) });
                }
                CallStateProjection::Called { inner, admitted } => {
                    let result = ready!(this.served.observe(|| inner.poll(cx))).map_err(Into::into);
                    let Some(admitted) = admitted.take() else { return Poll::Pending };
                    match complete(this.limiter, admitted, result, this.served) {
                        Ok(result) => return Poll::Ready(result),
                        Err(settlement) => this.state.set(CallState::Settling { settlement }),
                    }
                }
                CallStateProjection::Settling { settlement } => return settlement.as_mut().poll(cx),
            }
        }
    }
}
