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
use crate::address::MissingConnectInfo;
use crate::error::{BoxError, LayerError, is_rejection};
use crate::served::{HandlerMark, ServedCall};

/// The decision about a request. Dropping it refunds what was charged.
pub(super) struct LimitCharge<D: Store + 'static> {
    limiter: RateLimiter<D>,
    client: ClientBytes,
    decision: KeptDecision,
    /// Whether dropping refunds.
    is_pending: bool,
    /// Whether the handler was called.
    served: ServedCall,
}

impl<D: Store + 'static> LimitCharge<D> {
    #[inline]
    pub(super) fn new(
        limiter: RateLimiter<D>,
        client: ClientBytes,
        decision: KeptDecision,
        mark: Option<HandlerMark>,
    ) -> Self {
        let is_pending = decision.verdict().is_pass();
        Self { limiter, client, decision, is_pending, served: ServedCall::new(mark) }
    }

    /// A charge that is never refunded: the service has the request.
    #[inline]
    pub(super) fn kept(limiter: RateLimiter<D>, decision: KeptDecision) -> Self {
        let client = ClientBytes::new();
        Self { limiter, client, decision, is_pending: false, served: ServedCall::new(None) }
    }

    /// Tells the client about the limits in the response of an admitted request.
    fn complete<T, P: RespondToLimit<T>>(&mut self, result: &mut Result<T, LayerError>, respond: &P) {
        match result {
            Ok(response) if P::COMPLETES => {
                let rules = self.limiter.rules();
                self.decision
                    .with(|decision| respond.complete(response, RateLimitReport { decision, rules }));
            }
            Ok(_) => {}
            // If the handler never had the request, dropping the charge refunds it.
            Err(error) => self.is_pending = self.served.is_unserved() && is_rejection(error),
        }
    }

    /// The result of a request that is rejected.
    pub(super) fn reject<T>(&self, respond: &impl RespondToLimit<T>) -> Result<T, LayerError> {
        let rules = self.limiter.rules();
        self.decision.with(|decision| {
            let report = RateLimitReport { decision, rules };
            match report.rejection(&self.client) {
                Some(rejection) => respond.reject(rejection, report),
                None => Err(LayerError::new(StoreError::Protocol {
                    reason: "a rejection without a limit".to_owned(),
                })),
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
            self.decision.with(|decision| self.limiter.refund(client, decision));
        }
    }
}

/// What a client waits for while its request is not decided. Allocated only if the store has to be awaited.
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
        path: CallPath<S, R, D, P>,
    }
}

pin_project! {
    // No larger than the future of the service, if that has a spare value: this future is moved several times before it is
    // polled, and each move copies all of it. Whatever else a call needs is allocated.
    #[project = CallPathProjection]
    enum CallPath<S, R, D, P>
    where
        S: Service<R>,
        D: Store,
        D: 'static,
    {
        // The service has the request, and nothing depends on its response.
        Direct {
            #[pin]
            inner: S::Future,
        },
        Stateful {
            state: BoxCallState<S, R, D, P>,
        },
    }
}

/// A call that is not made yet.
pub(super) struct WaitingCall<P, S, R> {
    pub(super) respond: P,
    /// For the charge, while there is none.
    pub(super) mark: Option<HandlerMark>,
    pub(super) ready: S,
    pub(super) request: R,
}

/// The state of a call, if there is more to it than the future of the service.
pub(super) type BoxCallState<S, R, D, P> = Pin<Box<CallState<S, R, D, P>>>;

pin_project! {
    // A call that waits is boxed: every call copies as many bytes as the largest state has.
    #[project = CallStateProjection]
    pub(super) enum CallState<S, R, D, P>
    where
        S: Service<R>,
        D: Store,
        D: 'static,
    {
        Undecided {
            decision: PendingDecision,
            limiter: RateLimiter<D>,
            call: Option<Box<WaitingCall<P, S, R>>>,
        },
        Delayed {
            #[pin]
            timer: Sleep,
            call: Option<(LimitCharge<D>, Box<WaitingCall<P, S, R>>)>,
        },
        Admitted {
            #[pin]
            inner: S::Future,
            charge: LimitCharge<D>,
            respond: P,
        },
        // The store failed. The handler is observed nevertheless: a call outside of every scope would mean that it is called
        // from other tasks, and nothing would be refunded any more.
        Uncharged {
            #[pin]
            inner: S::Future,
            served: ServedCall,
        },
        Rejected {
            // `None` once it is returned.
            result: Option<Result<S::Response, LayerError>>,
        },
    }
}

impl<S, R, D, P> RateLimitFuture<S, R, D, P>
where
    S: Service<R>,
    D: Store + 'static,
    P: RespondToLimit<S::Response>,
{
    /// A call with a state.
    #[inline]
    pub(super) fn stateful(state: BoxCallState<S, R, D, P>) -> Self {
        Self { path: CallPath::Stateful { state } }
    }

    /// A call whose client is unknown.
    #[cold]
    pub(super) fn failed(missing: MissingConnectInfo) -> Self {
        Self::stateful(Box::pin(CallState::rejected(Err(LayerError::new(missing)))))
    }

    /// An admitted call without a charge.
    #[expect(clippy::inline_always, reason = "the future is large and is best built in place")]
    #[inline(always)]
    pub(super) fn direct(inner: S::Future) -> Self {
        Self { path: CallPath::Direct { inner } }
    }
}

impl<S, R, D, P> CallState<S, R, D, P>
where
    S: Service<R>,
    D: Store + 'static,
{
    pub(super) fn undecided(
        limiter: RateLimiter<D>,
        client: ClientBytes,
        call: Box<WaitingCall<P, S, R>>,
    ) -> Self {
        let decider = limiter.clone();
        let decision = Box::pin(async move {
            let decision = decider.decide(&client).await;
            (client, decision)
        });
        Self::Undecided { decision, limiter, call: Some(call) }
    }

    pub(super) fn delayed(wait: TimeSpan, charge: LimitCharge<D>, call: Box<WaitingCall<P, S, R>>) -> Self {
        Self::Delayed { timer: sleep(wait.into()), call: Some((charge, call)) }
    }

    /// Gives the request to the service. Its charge is kept, also if the service panics.
    pub(super) fn charged(mut charge: LimitCharge<D>, respond: P, ready: &mut S, request: R) -> Self {
        charge.keep();
        let inner = charge.served.observe(|| ready.call(request));
        Self::Admitted { inner, charge, respond }
    }

    /// The service has the request, which was not charged because the store failed.
    pub(super) fn uncharged(mark: Option<HandlerMark>, ready: &mut S, request: R) -> Self {
        let mut served = ServedCall::new(mark);
        let inner = served.observe(|| ready.call(request));
        Self::Uncharged { inner, served }
    }

    pub(super) fn rejected(result: Result<S::Response, LayerError>) -> Self {
        Self::Rejected { result: Some(result) }
    }

    fn admitted(charge: LimitCharge<D>, call: WaitingCall<P, S, R>) -> Self {
        let WaitingCall { respond, mut ready, request, .. } = call;
        Self::charged(charge, respond, &mut ready, request)
    }

    /// The state after the decision.
    fn decided(charge: LimitCharge<D>, call: Box<WaitingCall<P, S, R>>) -> Self
    where
        P: RespondToLimit<S::Response>,
    {
        match charge.decision.verdict() {
            Verdict::Pass { wait } if wait.is_zero() => Self::admitted(charge, *call),
            Verdict::Pass { wait } => Self::delayed(wait, charge, call),
            Verdict::NotUntil { .. } | Verdict::Never => Self::rejected(charge.reject(&call.respond)),
        }
    }

    fn store_failed(limiter: &RateLimiter<D>, error: StoreError, call: WaitingCall<P, S, R>) -> Self {
        let WaitingCall { mark, mut ready, request, .. } = call;
        match limiter.on_store_failure() {
            OnStoreFailure::Allow => Self::uncharged(mark, &mut ready, request),
            OnStoreFailure::Deny => Self::rejected(Err(LayerError::new(error))),
        }
    }

    fn poll_result(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<S::Response, LayerError>>
    where
        S::Error: Into<BoxError> + 'static,
        P: RespondToLimit<S::Response>,
    {
        loop {
            let next = match self.as_mut().project() {
                CallStateProjection::Admitted { inner, charge, respond } => {
                    let mut result =
                        ready!(charge.served.observe(|| inner.poll(cx))).map_err(LayerError::new);
                    charge.complete(&mut result, respond);
                    return Poll::Ready(result);
                }
                CallStateProjection::Uncharged { inner, served } => {
                    return served.observe(|| inner.poll(cx)).map_err(LayerError::new);
                }
                CallStateProjection::Undecided { decision, limiter, call } => {
                    let (client, decision) = ready!(decision.as_mut().poll(cx));
                    let Some(mut call) = call.take() else { return Poll::Pending };
                    match decision {
                        Ok(decision) => {
                            let (decision, mark) = (KeptDecision::new(decision), call.mark.take());
                            Self::decided(LimitCharge::new(limiter.clone(), client, decision, mark), call)
                        }
                        Err(error) => Self::store_failed(limiter, error, *call),
                    }
                }
                CallStateProjection::Delayed { timer, call } => {
                    ready!(timer.poll(cx));
                    let Some((charge, call)) = call.take() else { return Poll::Pending };
                    Self::admitted(charge, *call)
                }
                CallStateProjection::Rejected { result } => {
                    return result.take().map_or(Poll::Pending, Poll::Ready);
                }
            };
            self.set(next);
        }
    }
}

impl<S, R, D, P> Future for RateLimitFuture<S, R, D, P>
where
    S: Service<R>,
    S::Error: Into<BoxError> + 'static,
    D: Store + 'static,
    P: RespondToLimit<S::Response>,
{
    type Output = Result<S::Response, LayerError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().path.project() {
            CallPathProjection::Direct { inner } => inner.poll(cx).map_err(LayerError::new),
            CallPathProjection::Stateful { state } => state.as_mut().poll_result(cx),
        }
    }
}
