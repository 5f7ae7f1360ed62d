//! The service.

use std::mem;
use std::task::{Context, Poll};

use tower_service::Service;

use super::future::{RetryFuture, RetryPlanner};
use super::handle::SharedRetryBudget;
use super::layer::RetryConfig;
use super::rules::RetryRules;
use crate::error::{BoxError, LayerError};

/// A service whose failed requests are sent again.
#[derive(Clone, Debug)]
pub struct RetryService<S, P> {
    pub(super) inner: S,
    pub(super) config: RetryConfig,
    pub(super) rules: P,
    pub(super) budget: SharedRetryBudget,
}

impl<S, P, R> Service<R> for RetryService<S, P>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError> + 'static,
    P: RetryRules<R, S::Response> + Clone,
{
    type Response = S::Response;
    type Error = LayerError;
    type Future = RetryFuture<S, R, P>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        self.inner.poll_ready(cx).map_err(LayerError::new)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        self.budget.record_request();
        let may_retry = self.config.attempts > 1;
        let Some(copy) = may_retry.then(|| self.rules.clone_request(&request)).flatten() else {
            return RetryFuture::once(self.inner.call(request));
        };
        let deadline = self.rules.deadline(&request);
        let inner = self.inner.call(request);
        // Everything that only a retry needs is made after the call, at its place in the future. Before the call it would be kept
        // for the case of a panic, and copied.
        let planner = RetryPlanner {
            config: self.config,
            delays: self.config.backoff.delays(),
            attempts_left: self.config.attempts - 1,
            deadline,
            rules: self.rules.clone(),
            budget: self.budget.clone(),
        };
        // The future takes the service that was called, and makes it ready again before each retry.
        let clone = self.inner.clone();
        let called = mem::replace(&mut self.inner, clone);
        RetryFuture::with_retries(inner, called, copy, planner)
    }
}
