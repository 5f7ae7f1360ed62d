//! The service.

use std::mem;
use std::task::{Context, Poll};

use tidegate_core::Verdict;
use tidegate_store::{Store, StoreError};
use tower_service::Service;

use super::client::FindClient;
use super::future::{BoxCallState, CallState, LimitCharge, RateLimitFuture, WaitingCall};
use super::handle::{ClientBytes, OnStoreFailure, RateLimiter};
use super::kept_decision::KeptDecision;
use super::respond::RespondToLimit;
use crate::error::{BoxError, LayerError};
use crate::served::HandlerMark;

/// A service that limits the requests of each client.
#[derive(Debug)]
pub struct RateLimitService<S, D, K, P> {
    pub(super) inner: S,
    pub(super) limiter: RateLimiter<D>,
    pub(super) client: K,
    pub(super) respond: P,
    /// Set if the service knows which calls reach the handler.
    pub(super) mark: Option<HandlerMark>,
}

impl<S: Clone, D, K: Clone, P: Clone> Clone for RateLimitService<S, D, K, P> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            limiter: self.limiter.clone(),
            client: self.client.clone(),
            respond: self.respond.clone(),
            mark: self.mark.clone(),
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

    /// A call whose charge is refunded if the handler never has the request.
    #[inline(never)]
    fn call_marked<R>(&mut self, client: ClientBytes, request: R) -> BoxCallState<S, R, D, P>
    where
        S: Service<R> + Clone,
        D: Store + 'static,
        P: RespondToLimit<S::Response> + Clone,
    {
        let decided = self.limiter.try_decide(&client);
        self.call_with_state(decided.map(|decided| decided.map(KeptDecision::new)), client, request)
    }

    /// A call that has a state. Returns no future, because that may be large and would be copied.
    #[inline(never)]
    fn call_with_state<R>(
        &mut self,
        decided: Option<Result<KeptDecision, StoreError>>,
        client: ClientBytes,
        request: R,
    ) -> BoxCallState<S, R, D, P>
    where
        S: Service<R> + Clone,
        D: Store + 'static,
        P: RespondToLimit<S::Response> + Clone,
    {
        let decision = match decided {
            Some(Ok(decision)) => decision,
            Some(Err(_)) if self.limiter.on_store_failure() == OnStoreFailure::Allow => {
                return Box::pin(CallState::uncharged(self.mark.clone(), &mut self.inner, request));
            }
            Some(Err(error)) => return Box::pin(CallState::rejected(Err(LayerError::new(error)))),
            None => {
                let ready = self.take_ready();
                let pending =
                    WaitingCall { respond: self.respond.clone(), mark: self.mark.clone(), ready, request };
                return Box::pin(CallState::undecided(self.limiter.clone(), client, Box::new(pending)));
            }
        };
        let verdict = decision.verdict();
        let charge = LimitCharge::new(self.limiter.clone(), client, decision, self.mark.clone());
        Box::pin(match verdict {
            Verdict::PASS => CallState::charged(charge, self.respond.clone(), &mut self.inner, request),
            Verdict::Pass { wait } => {
                let ready = self.take_ready();
                let pending = WaitingCall { respond: self.respond.clone(), mark: None, ready, request };
                CallState::delayed(wait, charge, Box::new(pending))
            }
            Verdict::NotUntil { .. } | Verdict::Never => CallState::rejected(charge.reject(&self.respond)),
        })
    }
}

impl<S, D, K, P, R> Service<R> for RateLimitService<S, D, K, P>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError> + 'static,
    D: Store + 'static,
    K: FindClient<R>,
    P: RespondToLimit<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = LayerError;
    type Future = RateLimitFuture<S, R, D, P>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        self.inner.poll_ready(cx).map_err(LayerError::new)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let kept = {
            let key = match self.client.client(&request) {
                Ok(key) => key,
                Err(missing) => return RateLimitFuture::failed(missing),
            };
            let mut prefix = [0; 8];
            let client = key.as_ref().map_or(&[][..], |key| key.bytes(&mut prefix));
            if self.mark.is_some() {
                // The charge may be refunded, so it is kept with its client. Below, the outcome is computed only if it is read.
                let client = ClientBytes::from_slice(client);
                return RateLimitFuture::stateful(self.call_marked(client, request));
            }
            match self.limiter.try_decide(client) {
                // Most requests.
                Some(Ok(decision)) if decision.verdict == Verdict::PASS => {
                    P::COMPLETES.then(|| KeptDecision::new(decision))
                }
                decided => {
                    let decided = decided.map(|decided| decided.map(KeptDecision::new));
                    let client = ClientBytes::from_slice(client);
                    return RateLimitFuture::stateful(self.call_with_state(decided, client, request));
                }
            }
        };
        // Nothing of the charge is refunded. If the service panics, it is kept, too.
        let inner = self.inner.call(request);
        let Some(decision) = kept else { return RateLimitFuture::direct(inner) };
        let charge = LimitCharge::kept(self.limiter.clone(), decision);
        let respond = self.respond.clone();
        RateLimitFuture::stateful(Box::pin(CallState::Admitted { inner, charge, respond }))
    }
}
