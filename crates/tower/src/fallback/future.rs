//! The futures of a call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::error::{BoxError, LayerError};

pin_project! {
    /// A call whose error a closure may replace.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct FallbackFuture<I, F> {
        #[pin]
        inner: I,
        respond: F,
    }
}

impl<I, F> FallbackFuture<I, F> {
    pub(super) fn new(inner: I, respond: F) -> Self {
        Self { inner, respond }
    }
}

impl<I, F, T, E> Future for FallbackFuture<I, F>
where
    I: Future<Output = Result<T, E>>,
    E: Into<BoxError> + 'static,
    F: Fn(LayerError) -> Result<T, LayerError>,
{
    type Output = Result<T, LayerError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        Poll::Ready(result.or_else(|error| (this.respond)(LayerError::new(error))))
    }
}

pin_project! {
    /// A call to the primary service, and then perhaps to the secondary one.
    #[must_use = "futures do nothing unless polled"]
    pub struct FallbackServiceFuture<I, T, W, R>
    where
        T: Service<R>,
    {
        #[pin]
        state: CallState<I, T::Future>,
        // The secondary service and a copy of the request. `None` if there is no copy, and once the service is called.
        secondary: Option<(T, R)>,
        when: W,
    }
}

pin_project! {
    #[project = CallStateProjection]
    enum CallState<I, J> {
        Primary {
            #[pin]
            inner: I,
        },
        NotReady,
        Secondary {
            #[pin]
            inner: J,
        },
    }
}

impl<I, T: Service<R>, W, R> FallbackServiceFuture<I, T, W, R> {
    pub(super) fn new(inner: I, secondary: Option<(T, R)>, when: W) -> Self {
        Self { state: CallState::Primary { inner }, secondary, when }
    }
}

impl<I, T, W, R, E> Future for FallbackServiceFuture<I, T, W, R>
where
    I: Future<Output = Result<T::Response, E>>,
    E: Into<BoxError> + 'static,
    T: Service<R>,
    T::Error: Into<BoxError> + 'static,
    W: Fn(&LayerError) -> bool,
{
    type Output = Result<T::Response, LayerError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                CallStateProjection::Primary { inner } => {
                    let error = match ready!(inner.poll(cx)) {
                        Ok(response) => return Poll::Ready(Ok(response)),
                        Err(error) => LayerError::new(error),
                    };
                    if this.secondary.is_none() || !(this.when)(&error) {
                        return Poll::Ready(Err(error));
                    }
                    // The first call ends here: it gives back what it holds before the second one starts.
                    this.state.set(CallState::NotReady);
                }
                CallStateProjection::NotReady => {
                    let Some((service, _)) = this.secondary else { return Poll::Pending };
                    if let Err(error) = ready!(service.poll_ready(cx)) {
                        return Poll::Ready(Err(LayerError::new(error)));
                    }
                    let Some((mut service, request)) = this.secondary.take() else { return Poll::Pending };
                    #[cfg(any(feature = "policy", feature = "rate_limit"))]
                    crate::served::mark_served();
                    let inner = service.call(request);
                    this.state.set(CallState::Secondary { inner });
                }
                CallStateProjection::Secondary { inner } => return inner.poll(cx).map_err(LayerError::new),
            }
        }
    }
}
