//! The breaker of a gRPC service. Its status is at the end of a response, so a call ends with the body of its response.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate_core::{CallEnd, CallOutcome};
use tidegate_headers::grpc_status;
use tower_layer::Layer;
use tower_service::Service;

use super::error::BreakerOpen;
use super::future::count_panic;
use super::handle::{BreakerPermit, CircuitBreaker};
use super::service::BreakerService;
use crate::error::{BoxError, LayerError, error_outcome};

/// UNKNOWN: what a response without a status means.
const UNKNOWN: u16 = 2;

/// Protects a gRPC service with a circuit breaker. Made by [`BreakerLayer::grpc`](super::BreakerLayer::grpc).
#[derive(Clone, Debug)]
pub struct GrpcBreakerLayer {
    breaker: CircuitBreaker,
}

impl GrpcBreakerLayer {
    pub(super) fn new(breaker: CircuitBreaker) -> Self {
        Self { breaker }
    }
}

impl<S> Layer<S> for GrpcBreakerLayer {
    type Service = GrpcBreakerService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let breaker = self.breaker.clone();
        GrpcBreakerService(BreakerService { inner, breaker, classifier: (), is_unready: false })
    }
}

/// A gRPC service with a circuit breaker.
#[derive(Clone, Debug)]
pub struct GrpcBreakerService<S>(BreakerService<S, ()>);

impl<S, R, B> Service<R> for GrpcBreakerService<S>
where
    S: Service<R, Response = Response<B>>,
    S::Error: Into<BoxError> + 'static,
    B: Body,
{
    type Response = Response<GrpcBreakerBody<B>>;
    type Error = LayerError;
    type Future = GrpcBreakerFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        let inner = self.0.inner.poll_ready(cx);
        self.0.ready(inner)
    }

    fn call(&mut self, request: R) -> Self::Future {
        match self.0.try_acquire() {
            Ok(mut permit) => {
                let inner = count_panic(Some(&mut permit), || self.0.inner.call(request));
                GrpcBreakerFuture { state: CallState::Called { inner, permit: Some(permit) } }
            }
            Err(open) => GrpcBreakerFuture { state: CallState::Rejected { open } },
        }
    }
}

pin_project! {
    /// A gRPC call that the breaker admitted or rejected.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct GrpcBreakerFuture<F> {
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
            // `None` once the result is recorded, or the body of the response has it.
            permit: Option<BreakerPermit>,
        },
        Rejected {
            open: BreakerOpen,
        },
    }
}

impl<F, B, E> Future for GrpcBreakerFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError> + 'static,
    B: Body,
{
    type Output = Result<Response<GrpcBreakerBody<B>>, LayerError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (inner, permit) = match self.project().state.project() {
            CallStateProjection::Called { inner, permit } => (inner, permit),
            CallStateProjection::Rejected { open } => return Poll::Ready(Err(LayerError::new(*open))),
        };
        let result = ready!(count_panic(permit.as_mut(), || inner.poll(cx))).map_err(LayerError::new);
        let end = match &result {
            Ok(response) => end_at_head(response),
            Err(error) => Some(error_outcome(error)),
        };
        if let Some(outcome) = end
            && let Some(permit) = permit.take()
        {
            permit.record(outcome);
        }
        Poll::Ready(
            result.map(|response| response.map(|inner| GrpcBreakerBody { inner, permit: permit.take() })),
        )
    }
}

/// The outcome of a call that ended with the head of its response: a response of trailers only, or one that is not gRPC.
fn end_at_head<B: Body>(response: &Response<B>) -> Option<CallOutcome> {
    if response.status() != StatusCode::OK {
        return Some(CallEnd::Status(response.status().as_u16()).outcome());
    }
    let code = grpc_status(response.headers()).or_else(|| missing_status(response.body()));
    code.map(|code| CallEnd::GrpcStatus(code).outcome())
}

/// The status of a body that has ended, if no status came before. Such a body may not be polled again.
fn missing_status(body: &impl Body) -> Option<u16> {
    body.is_end_stream().then_some(UNKNOWN)
}

pin_project! {
    /// The body of a gRPC response. The call ends with it. Dropping it earlier cancels the call.
    #[derive(Debug)]
    pub struct GrpcBreakerBody<B> {
        #[pin]
        inner: B,
        // `None` once the result is recorded.
        permit: Option<BreakerPermit>,
    }
}

impl<B: Default> Default for GrpcBreakerBody<B> {
    fn default() -> Self {
        Self { inner: B::default(), permit: None }
    }
}

impl<B: Body> Body for GrpcBreakerBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut this = self.project();
        let frame = ready!(count_panic(this.permit.as_mut(), || this.inner.as_mut().poll_frame(cx)));
        let status = |trailers: &HeaderMap| grpc_status(trailers).unwrap_or(UNKNOWN);
        let end = match &frame {
            Some(Ok(frame)) => {
                let code = frame.trailers_ref().map(status).or_else(|| missing_status(&*this.inner));
                code.map(CallEnd::GrpcStatus)
            }
            Some(Err(_)) => Some(CallEnd::Reset),
            None => Some(CallEnd::GrpcStatus(UNKNOWN)),
        };
        match end {
            Some(end) => {
                if let Some(permit) = this.permit.take() {
                    permit.record(end.outcome());
                }
            }
            // A service that sends messages works so far. A stream may last, and other probes must not wait for its end.
            None => this.permit.iter_mut().for_each(BreakerPermit::release_slot),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
