//! The future of a call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate_core::{Decision, TimeSpan, Verdict};
use tidegate_store::{Store, StoreError};
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::handle::{ClientBytes, OnStoreFailure, RateLimiter};
use super::kept_decision::KeptDecision;
use super::report::RateLimitReport;
use super::respond::RespondToLimit;
use crate::error::{BoxError, is_rejection};

/// The decision about a request. Dropping it refunds what was charged.
pub(super) struct LimitCharge<D: Store + 'static> {
    limiter: RateLimiter<D>,
    client: ClientBytes,
    decision: KeptDecision,
    /// Whether dropping refunds.
    is_pending: bool,
}

impl<D: Store + 'static> LimitCharge<D> {
    #[inline]
    pub(super) fn new(limiter: RateLimiter<D>, client: ClientBytes, decision: KeptDecision) -> Self {
        let is_pending = decision.verdict().is_pass();
        Self { limiter, client, decision, is_pending }
    }

    /// Tells the client about the limits in the response of an admitted request.
    fn complete<T, P: RespondToLimit<T>>(&mut self, result: &mut Result<T, BoxError>, respond: &P) {
        match result {
            Ok(response) if P::COMPLETES => {
                let rules = self.limiter.rules();
                self.decision
                    .with(|decision| respond.complete(response, RateLimitReport { decision, rules }));
            }
            Ok(_) => {}
            // The service never had the request: dropping the charge refunds it.
            Err(error) => self.is_pending = is_rejection(error),
        }
    }

    /// The result of a request that is rejected.
    pub(super) fn reject<T>(&self, respond: &impl RespondToLimit<T>) -> Result<T, BoxError> {
        let rules = self.limiter.rules();
        self.decision.with(|decision| {
            let report = RateLimitReport { decision, rules };
            match report.rejection(&self.client) {
                Some(rejection) => respond.reject(rejection, report),
                None => Err(StoreError::Protocol { reason: "a rejection without a limit".to_owned() }.into()),
            }
        })
    }

    /// Keeps the charge: the service has the request.
    fn keep(&mut self) {
        self.is_pending = false;
    }
}

impl<D: Store + 'static> Drop for LimitCharge<D> {
    fn drop(&mut self) {
        if self.is_pending {
            let client = std::mem::take(&mut self.client);
            self.decision.with(|decision| self.limiter.refund(client, decision.clone()));
        }
    }
}

/// What a client waits for while its request is not decided. Only stores that are not immediate allocate it.
type PendingDecision = Pin<Box<dyn Future<Output = (ClientBytes, Result<Decision, StoreError>)> + Send>>;

pin_project! {
    /// A call that is decided, delayed, admitted or rejected.
    #[must_use = "futures do nothing unless polled"]
    pub struct RateLimitFuture<S, R, D, P>
    where
        S: Service<R>,
        D: Store,
        D: 'static,
    {
        #[pin]
        state: CallState<S, R, D, P>,
    }
}

pin_project! {
    #[project = CallStateProjection]
    enum CallState<S, R, D, P>
    where
        S: Service<R>,
        D: Store,
        D: 'static,
    {
        Undecided {
            decision: PendingDecision,
            limiter: RateLimiter<D>,
            // Boxed like the timer: a request that is admitted at once does not make room for them.
            call: Option<Box<(P, S, R)>>,
        },
        Delayed {
            timer: Pin<Box<Sleep>>,
            call: Option<Box<(LimitCharge<D>, P, S, R)>>,
        },
        Admitted {
            #[pin]
            inner: S::Future,
            // `None` if it is not needed, or if the store failed.
            charge: Option<LimitCharge<D>>,
            respond: P,
        },
        Done {
            // `None` once it is returned.
            result: Option<Result<S::Response, BoxError>>,
        },
    }
}

impl<S, R, D, P> RateLimitFuture<S, R, D, P>
where
    S: Service<R>,
    D: Store + 'static,
    P: RespondToLimit<S::Response>,
{
    /// Whether anything may be done with the charge of a request that the service has: its response completed, or the charge
    /// refunded. An error without a value, such as `Infallible`, is never a rejection.
    pub(super) const KEEPS_CHARGE: bool = P::COMPLETES || size_of::<Result<(), S::Error>>() > 0;

    pub(super) fn undecided(
        (limiter, respond): (RateLimiter<D>, P),
        client: ClientBytes,
        ready: S,
        request: R,
    ) -> Self {
        let decider = limiter.clone();
        let decision = Box::pin(async move {
            let decision = decider.decide(&client).await;
            (client, decision)
        });
        Self {
            state: CallState::Undecided {
                decision,
                limiter,
                call: Some(Box::new((respond, ready, request))),
            },
        }
    }

    pub(super) fn delayed(
        wait: TimeSpan,
        (charge, respond): (LimitCharge<D>, P),
        ready: S,
        request: R,
    ) -> Self {
        Self { state: CallState::delayed(wait, (charge, respond, ready, request)) }
    }

    #[expect(clippy::inline_always, reason = "the future is large and is best built in place")]
    #[inline(always)]
    pub(super) fn admitted(inner: S::Future, mut charge: Option<LimitCharge<D>>, respond: P) -> Self {
        if let Some(charge) = &mut charge {
            charge.keep();
        }
        Self { state: CallState::Admitted { inner, charge, respond } }
    }

    pub(super) fn rejected(result: Result<S::Response, BoxError>) -> Self {
        Self { state: CallState::Done { result: Some(result) } }
    }

    pub(super) fn failed(error: StoreError) -> Self {
        Self::rejected(Err(error.into()))
    }
}

impl<S, R, D, P> CallState<S, R, D, P>
where
    S: Service<R>,
    D: Store + 'static,
{
    fn delayed(wait: TimeSpan, call: (LimitCharge<D>, P, S, R)) -> Self {
        Self::Delayed { timer: Box::pin(sleep(wait.into())), call: Some(Box::new(call)) }
    }

    fn admitted((mut charge, respond, mut ready, request): (LimitCharge<D>, P, S, R)) -> Self {
        charge.keep();
        Self::Admitted { inner: ready.call(request), charge: Some(charge), respond }
    }

    /// The state after the decision.
    fn decided(charge: LimitCharge<D>, (respond, ready, request): (P, S, R)) -> Self
    where
        P: RespondToLimit<S::Response>,
    {
        match charge.decision.verdict() {
            Verdict::Pass { wait } if wait.is_zero() => Self::admitted((charge, respond, ready, request)),
            Verdict::Pass { wait } => Self::delayed(wait, (charge, respond, ready, request)),
            Verdict::NotUntil { .. } | Verdict::Never => Self::Done { result: Some(charge.reject(&respond)) },
        }
    }

    fn store_failed(
        limiter: &RateLimiter<D>,
        error: StoreError,
        (respond, mut ready, request): (P, S, R),
    ) -> Self {
        match limiter.on_store_failure() {
            OnStoreFailure::Allow => Self::Admitted { inner: ready.call(request), charge: None, respond },
            OnStoreFailure::Deny => Self::Done { result: Some(Err(error.into())) },
        }
    }
}

impl<S, R, D, P> Future for RateLimitFuture<S, R, D, P>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
    D: Store + 'static,
    P: RespondToLimit<S::Response>,
{
    type Output = Result<S::Response, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                CallStateProjection::Admitted { inner, charge, respond } => {
                    let mut result = ready!(inner.poll(cx)).map_err(Into::into);
                    if let Some(charge) = charge {
                        charge.complete(&mut result, respond);
                    }
                    return Poll::Ready(result);
                }
                CallStateProjection::Undecided { decision, limiter, call } => {
                    let (client, decision) = ready!(decision.as_mut().poll(cx));
                    let Some(call) = call.take() else { return Poll::Pending };
                    match decision {
                        Ok(decision) => CallState::decided(
                            LimitCharge::new(limiter.clone(), client, KeptDecision::new(decision)),
                            *call,
                        ),
                        Err(error) => CallState::store_failed(limiter, error, *call),
                    }
                }
                CallStateProjection::Delayed { timer, call } => {
                    ready!(timer.as_mut().poll(cx));
                    let Some(call) = call.take() else { return Poll::Pending };
                    CallState::admitted(*call)
                }
                CallStateProjection::Done { result } => {
                    return result.take().map_or(Poll::Pending, Poll::Ready);
                }
            };
            state.set(next);
        }
    }
}
