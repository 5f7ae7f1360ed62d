//! Services that respond to errors instead of failing, as axum, hyper and tonic require.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;
use tidegate_headers::BodyStyle;
use tower_layer::Layer;
use tower_service::Service;

use crate::error::{BoxError, LayerError};
use crate::response::{grpc_response, into_response};

/// Turns the errors of a service and of the layers around it into responses with a body of type `B`.
pub trait RespondToError<B> {
    /// The response to `error`.
    fn error_response(&self, error: LayerError) -> Response<B>;
}

/// Turns the errors of an HTTP service and of the layers around it into responses ([`into_response`]). It is the outermost layer:
/// a service that has it never fails, as `axum::Router::layer` requires.
///
/// ```
/// use std::time::Duration;
///
/// use axum::Router;
/// use tidegate_tower::HttpErrorLayer;
/// use tidegate_tower::timeout::TimeoutLayer;
///
/// // A tuple of layers is a layer; the first one is the outermost.
/// let app: Router = Router::new().layer((HttpErrorLayer::default(), TimeoutLayer::new(Duration::from_secs(5))));
/// # let _ = app;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpErrorLayer {
    style: BodyStyle,
}

impl HttpErrorLayer {
    /// Responds with bodies of this style.
    pub fn new(style: BodyStyle) -> Self {
        Self { style }
    }
}

impl<B: From<Vec<u8>>> RespondToError<B> for HttpErrorLayer {
    fn error_response(&self, error: LayerError) -> Response<B> {
        into_response(error, self.style)
    }
}

impl<S> Layer<S> for HttpErrorLayer {
    type Service = ErrorResponseService<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        ErrorResponseService { inner, respond: *self, broken: None }
    }
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

impl<B: Default> RespondToError<B> for GrpcErrorLayer {
    fn error_response(&self, error: LayerError) -> Response<B> {
        grpc_response(&error, &[])
    }
}

impl<S> Layer<S> for GrpcErrorLayer {
    type Service = ErrorResponseService<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        ErrorResponseService { inner, respond: *self, broken: None }
    }
}

/// A service that responds to errors instead of failing.
#[derive(Debug)]
pub struct ErrorResponseService<S, P> {
    inner: S,
    respond: P,
    /// The error of an inner service that never becomes ready again.
    broken: Option<LayerError>,
}

impl<S: Clone, P: Clone> Clone for ErrorResponseService<S, P> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), respond: self.respond.clone(), broken: None }
    }
}

impl<S, P, R, B> Service<R> for ErrorResponseService<S, P>
where
    S: Service<R, Response = Response<B>>,
    S::Error: Into<BoxError> + 'static,
    P: RespondToError<B> + Clone,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = ErrorResponseFuture<S::Future, P>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.broken.is_none() {
            self.broken = ready!(self.inner.poll_ready(cx)).err().map(LayerError::new);
        }
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let respond = self.respond.clone();
        match self.broken.take() {
            Some(error) => ErrorResponseFuture { inner: None, error: Some(error), respond },
            None => ErrorResponseFuture { inner: Some(self.inner.call(request)), error: None, respond },
        }
    }
}

pin_project! {
    /// A call whose error becomes a response.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ErrorResponseFuture<F, P> {
        #[pin]
        inner: Option<F>,
        // The reason for which there was no call.
        error: Option<LayerError>,
        respond: P,
    }
}

impl<F, P, B, E> Future for ErrorResponseFuture<F, P>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError> + 'static,
    P: RespondToError<B>,
{
    type Output = Result<Response<B>, Infallible>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = match this.inner.as_pin_mut() {
            Some(inner) => ready!(inner.poll(cx)).map_err(LayerError::new),
            None => match this.error.take() {
                Some(error) => Err(error),
                None => return Poll::Pending,
            },
        };
        Poll::Ready(Ok(result.unwrap_or_else(|error| this.respond.error_response(error))))
    }
}
