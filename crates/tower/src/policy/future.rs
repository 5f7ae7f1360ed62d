//! The future of a call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tidegate_headers::is_rejected_by_upstream;
use tidegate_limiter::Charge;
use tower_service::Service;

use super::check::{AdmittedCall, PolicyVerdict};
use crate::address::MissingConnectInfo;
use crate::error::{BoxError, LayerError, is_rejection};
use crate::served::{HandlerMark, ServedCall};

/// The check of a request. Its type cannot be named, because it borrows the policy.
type PendingCheck<B, T> = Pin<Box<dyn Future<Output = PolicyVerdict<B, T>> + Send>>;
/// A result whose charge is being settled.
type PendingSettlement<T> = Pin<Box<dyn Future<Output = Result<Response<T>, LayerError>> + Send>>;

pin_project! {
    /// A call that is checked, served and settled.
    #[must_use = "futures do nothing unless polled"]
    pub struct PolicyFuture<S, B, T>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: CallState<S, B, T>,
        served: ServedCall,
    }
}

pin_project! {
    #[project = CallStateProjection]
    enum CallState<S, B, T>
    where
        S: Service<Request<B>>,
    {
        Unchecked {
            check: PendingCheck<B, T>,
            // `None` once it is called.
            ready: Option<S>,
        },
        Called {
            #[pin]
            inner: S::Future,
            admitted: Option<AdmittedCall>,
        },
        Settling {
            settlement: PendingSettlement<T>,
        },
        // The client is unknown.
        Failed {
            missing: MissingConnectInfo,
        },
    }
}

impl<S, B, T> PolicyFuture<S, B, T>
where
    S: Service<Request<B>>,
{
    pub(super) fn new(check: PendingCheck<B, T>, ready: S, mark: Option<HandlerMark>) -> Self {
        let state = CallState::Unchecked { check, ready: Some(ready) };
        Self { state, served: ServedCall::new(mark) }
    }

    pub(super) fn failed(missing: MissingConnectInfo) -> Self {
        Self { state: CallState::Failed { missing }, served: ServedCall::new(None) }
    }
}

/// Completes a result: headers, refund, settlement.
fn complete<T: Send + 'static>(
    AdmittedCall { mut headers, charge, .. }: AdmittedCall,
    mut result: Result<Response<T>, LayerError>,
    served: &ServedCall,
) -> Result<Result<Response<T>, LayerError>, PendingSettlement<T>> {
    if let Ok(response) = &mut result
        && !is_rejected_by_upstream(response.status(), response.headers())
    {
        headers.insert_into(response.headers_mut());
    }
    let Some(charge) = charge else { return Ok(result) };
    match result {
        Ok(response) if charge.is_open() => Err(Box::pin(async move {
            let (parts, body) = response.into_parts();
            charge.settle(parts.status.as_u16(), &parts.headers).await;
            Ok(Response::from_parts(parts, body))
        })),
        Err(error) if is_rejection(&error) && served.is_unserved() => {
            charge.refund();
            Ok(Err(error))
        }
        result => Ok(result),
    }
}

impl<S, B, T> Future for PolicyFuture<S, B, T>
where
    S: Service<Request<B>, Response = Response<T>>,
    S::Error: Into<BoxError> + 'static,
    T: Send + 'static,
{
    type Output = Result<Response<T>, LayerError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                CallStateProjection::Unchecked { check, ready } => {
                    let (request, mut admitted) = match ready!(check.as_mut().poll(cx)) {
                        Ok(admitted) => admitted,
                        Err(response) => return Poll::Ready(Ok(response)),
                    };
                    let Some(mut service) = ready.take() else { return Poll::Pending };
                    admitted.charge.iter_mut().for_each(Charge::serve);
                    let inner = this.served.observe(|| service.call(request));
                    this.state.set(CallState::Called { inner, admitted: Some(admitted) });
                }
                CallStateProjection::Called { inner, admitted } => {
                    let result = ready!(this.served.observe(|| inner.poll(cx))).map_err(LayerError::new);
                    let Some(admitted) = admitted.take() else { return Poll::Pending };
                    match complete(admitted, result, this.served) {
                        Ok(result) => return Poll::Ready(result),
                        Err(settlement) => this.state.set(CallState::Settling { settlement }),
                    }
                }
                CallStateProjection::Settling { settlement } => return settlement.as_mut().poll(cx),
                CallStateProjection::Failed { missing } => {
                    return Poll::Ready(Err(LayerError::new(*missing)));
                }
            }
        }
    }
}
