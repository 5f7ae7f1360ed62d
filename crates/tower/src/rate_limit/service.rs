//! The service.

use std::mem;
use std::task::{Context, Poll};

use tidegate_core::Verdict;
use tidegate_store::Store;
use tower_service::Service;

use super::client::FindClient;
use super::future::{LimitCharge, RateLimitFuture};
use super::handle::{ClientBytes, OnStoreFailure, RateLimiter};
use super::respond::RespondToLimit;
use crate::error::BoxError;

/// A service that limits the requests of each client.
#[derive(Debug)]
pub struct RateLimitService<S, D, K, P> {
    pub(super) inner: S,
    pub(super) limiter: RateLimiter<D>,
    pub(super) client: K,
    pub(super) respond: P,
}

impl<S: Clone, D, K: Clone, P: Clone> Clone for RateLimitService<S, D, K, P> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            limiter: self.limiter.clone(),
            client: self.client.clone(),
            respond: self.respond.clone(),
        }
    }
}

impl<S, D, K, P> RateLimitService<S, D, K, P> {
    /// The service that is ready; a clone, which need not be, takes its place.
    fn take_ready(&mut self) -> S
    where
        S: Clone,
    {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}

impl<S, D, K, P, R> Service<R> for RateLimitService<S, D, K, P>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
    D: Store + 'static,
    K: FindClient<R>,
    P: RespondToLimit<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = RateLimitFuture<S, R, D, P>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let client = match self.client.client(&request) {
            Some(key) => key.with_bytes(ClientBytes::from_slice),
            None => ClientBytes::new(),
        };
        let Some(result) = self.limiter.decide_in_place(&client) else {
            let ready = self.take_ready();
            return RateLimitFuture::undecided(
                (self.limiter.clone(), self.respond.clone()),
                client,
                ready,
                request,
            );
        };
        let decision = match result {
            Ok(decision) => decision,
            Err(_) if self.limiter.on_store_failure() == OnStoreFailure::Allow => {
                return RateLimitFuture::unlimited(self.inner.call(request));
            }
            Err(error) => return RateLimitFuture::failed(error),
        };
        let verdict = decision.verdict;
        let charge = LimitCharge::new(self.limiter.clone(), client, decision);
        match verdict {
            Verdict::Pass { wait } if wait.is_zero() => {
                RateLimitFuture::admitted(self.inner.call(request), charge, self.respond.clone())
            }
            Verdict::Pass { wait } => {
                let ready = self.take_ready();
                RateLimitFuture::delayed(wait, (charge, self.respond.clone()), ready, request)
            }
            Verdict::NotUntil { .. } | Verdict::Never => {
                RateLimitFuture::rejected(charge.reject(&self.respond))
            }
        }
    }
}
