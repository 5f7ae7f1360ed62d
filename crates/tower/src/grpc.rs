//! gRPC responses to errors. A gRPC client sees only a broken stream if the service fails instead.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use pin_project_lite::pin_project;
use tidegate_headers::{GrpcPushback, write_grpc_status, write_retry_after};
use tower_layer::Layer;
use tower_service::Service;

use crate::error::BoxError;
use crate::response::describe;

/// The response to an error of a layer, as a gRPC status: `RESOURCE_EXHAUSTED` for a rate limit, `UNAVAILABLE` for an open breaker, a
/// full bulkhead and overload, `DEADLINE_EXCEEDED` for deadlines and timeouts, `UNKNOWN` for an error that no layer caused.
pub(crate) fn grpc_response<B: Default>(error: &BoxError) -> Response<B> {
    let mut response = Response::new(B::default());
    let (status, message, retry_after) = describe_call(error);
    let pushback = match retry_after {
        Some(seconds) => GrpcPushback::Seconds(seconds),
        // The cost of a call that no limit can ever admit.
        None if status == StatusCode::TOO_MANY_REQUESTS => GrpcPushback::Never,
        None => GrpcPushback::Unknown,
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    write_grpc_status(headers, status, message, pushback);
    if let Some(seconds) = retry_after {
        write_retry_after(headers, seconds);
    }
    response
}

fn describe_call(error: &BoxError) -> (StatusCode, &'static str, Option<u64>) {
    #[cfg(feature = "rate_limit")]
    if let Some(limited) = crate::error::find_cause::<crate::rate_limit::RateLimited>(error) {
        return (StatusCode::TOO_MANY_REQUESTS, "Rate limit exceeded.", limited.retry_after_seconds());
    }
    let body = describe(error);
    (body.status, body.message, body.retry_after)
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
            return Poll::Ready(Ok(grpc_response(&error)));
        }
        let Some(inner) = this.inner.as_pin_mut() else { return Poll::Pending };
        Poll::Ready(Ok(ready!(inner.poll(cx)).unwrap_or_else(|error| grpc_response(&error.into()))))
    }
}
