//! gRPC responses to errors. A gRPC client sees only a broken stream if the service fails instead.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use pin_project_lite::pin_project;
use tidegate_headers::{HeaderStyle, write_grpc_status};
use tower_layer::Layer;
use tower_service::Service;

use crate::error::BoxError;
use crate::response::describe;

/// The response to an error of a layer, as a gRPC status: `RESOURCE_EXHAUSTED` for a rate limit, `UNAVAILABLE` for an open breaker, a
/// full bulkhead and overload, `DEADLINE_EXCEEDED` for deadlines and timeouts, `UNKNOWN` for an error that no layer caused.
/// `styles` are those of the headers that report limits.
pub(crate) fn grpc_response<B: Default>(error: &BoxError, styles: &[HeaderStyle]) -> Response<B> {
    let mut response = Response::new(B::default());
    let (refusal, retry_after) = describe(error);
    let body = refusal.body(retry_after, None);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    write_grpc_status(headers, body.status, &body.full_message(), retry_after);
    body.write_retry_after(headers, styles);
    response
}

/// Turns the errors of a gRPC service and of the layers around it into gRPC statuses. It is the outermost layer of a tonic
/// server, which resets the stream of a call that fails with any other error.
///
/// ```
/// use std::time::Duration;
///
/// use tidegate_tower::GrpcErrorLayer;
/// use tidegate_tower::timeout::TimeoutLayer;
/// use tower::ServiceBuilder;
///
/// let layers = ServiceBuilder::new().layer(GrpcErrorLayer).layer(TimeoutLayer::new(Duration::from_secs(5)));
/// # let _ = layers;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcErrorLayer;

impl<S> Layer<S> for GrpcErrorLayer {
    type Service = GrpcErrorService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        GrpcErrorService { inner, broken: None }
    }
}

/// A gRPC service that responds to errors instead of failing.
#[derive(Debug)]
pub struct GrpcErrorService<S> {
    inner: S,
    /// The error of an inner service that never becomes ready again.
    broken: Option<BoxError>,
}

impl<S: Clone> Clone for GrpcErrorService<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), broken: None }
    }
}

impl<S, R, B> Service<R> for GrpcErrorService<S>
where
    S: Service<R, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Default,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = GrpcErrorFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.broken.is_none() {
            self.broken = ready!(self.inner.poll_ready(cx)).err().map(Into::into);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        match self.broken.take() {
            Some(error) => GrpcErrorFuture { inner: None, error: Some(error) },
            None => GrpcErrorFuture { inner: Some(self.inner.call(request)), error: None },
        }
    }
}

pin_project! {
    /// A gRPC call whose errors become statuses.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct GrpcErrorFuture<F> {
        #[pin]
        inner: Option<F>,
        // The reason for which there was no call.
        error: Option<BoxError>,
    }
}

impl<F, B, E> Future for GrpcErrorFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Default,
{
    type Output = Result<Response<B>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Some(error) = this.error.take() {
            return Poll::Ready(Ok(grpc_response(&error, &[])));
        }
        let Some(inner) = this.inner.as_pin_mut() else { return Poll::Pending };
        Poll::Ready(Ok(ready!(inner.poll(cx)).unwrap_or_else(|error| grpc_response(&error.into(), &[]))))
    }
}
