//! The services.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use tidegate_core::TimeSpan;
use tidegate_store::Clock;
use tower_service::Service;

use super::future::DeadlineFuture;
use super::handle::Deadline;
use crate::error::{BoxError, LayerError};
use crate::ready::ReadyWait;

/// A server that enforces the deadlines of its requests.
#[derive(Clone, Debug)]
pub struct DeadlineService<S> {
    pub(super) inner: S,
    pub(super) max: Option<TimeSpan>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ready_wait: ReadyWait,
}

impl<S, B> Service<Request<B>> for DeadlineService<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError> + 'static,
{
    type Response = S::Response;
    type Error = LayerError;
    type Future = DeadlineFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        let inner = self.inner.poll_ready(cx);
        self.ready_wait.poll(inner, || self.max.map(Into::into), cx)
    }

    #[inline]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if self.ready_wait.take_expired() {
            return DeadlineFuture::passed();
        }
        let now = self.clock.now();
        let longest = self.max.map(|max| now + max);
        let asked = Deadline::from_headers(request.headers(), now);
        let own = match (asked, longest) {
            (Some(asked), Some(longest)) => Some(asked.at_most(longest)),
            (asked, longest) => asked.or(longest.map(Deadline::at)),
        };
        // A layer further out may have set a deadline.
        let outer = request.extensions().get::<Deadline>().copied();
        let deadline = match (own, outer) {
            (Some(own), Some(outer)) => Some(own.at_most(outer.instant())),
            (own, outer) => own.or(outer),
        };
        let Some(deadline) = deadline else {
            return DeadlineFuture::unbounded(self.inner.call(request));
        };
        let remaining = deadline.remaining(now);
        if remaining.is_zero() {
            return DeadlineFuture::passed();
        }
        request.extensions_mut().insert(deadline);
        let inner = deadline.sync_scope(|| self.inner.call(request));
        DeadlineFuture::bounded(deadline.scope(inner), remaining.into())
    }
}

/// A client that sends the time that remains, and does not send what is too late.
#[derive(Clone, Debug)]
pub struct OutgoingDeadlineService<S> {
    pub(super) inner: S,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ready_wait: ReadyWait,
}

impl<S, B> Service<Request<B>> for OutgoingDeadlineService<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError> + 'static,
{
    type Response = S::Response;
    type Error = LayerError;
    type Future = DeadlineFuture<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        let inner = self.inner.poll_ready(cx);
        let remaining = || Some(Deadline::current()?.remaining(self.clock.now()).into());
        self.ready_wait.poll(inner, remaining, cx)
    }

    #[inline]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if self.ready_wait.take_expired() {
            return DeadlineFuture::passed();
        }
        let deadline = Deadline::of_request(&request);
        let Some(deadline) = deadline else {
            return DeadlineFuture::unbounded(self.inner.call(request));
        };
        let now = self.clock.now();
        let remaining = deadline.remaining(now);
        if remaining.is_zero() {
            return DeadlineFuture::passed();
        }
        deadline.write_headers(request.headers_mut(), now);
        let inner = self.inner.call(request);
        DeadlineFuture::bounded(deadline.scope(inner), remaining.into())
    }
}
