//! The future of a request with all of its attempts.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tidegate_core::{BackoffDelays, TimeSpan};
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::handle::{RetryPermit, SharedRetryBudget};
use super::layer::RetryConfig;
use super::rules::{RetryAdvice, RetryRules};
use crate::deadline::{Deadline, DeadlineExceeded};
use crate::error::{BoxError, LayerError};

pin_project! {
    /// A request with all of its attempts.
    #[must_use = "futures do nothing unless polled"]
    pub struct RetryFuture<S, R, P>
    where
        S: Service<R>,
    {
        #[pin]
        state: AttemptState<S::Future>,
        // `None` if the request cannot be sent again, or no longer.
        next: Option<PendingRetry<S, R, P>>,
    }
}

pin_project! {
    #[project = AttemptStateProjection]
    enum AttemptState<F> {
        Called {
            #[pin]
            inner: F,
        },
        Waiting {
            #[pin]
            timer: Sleep,
            permit: Option<RetryPermit>,
        },
        NotReady {
            permit: Option<RetryPermit>,
        },
    }
}

/// What the next attempt needs.
struct PendingRetry<S, R, P> {
    service: S,
    request: R,
    planner: RetryPlanner<P>,
}

/// Decides whether there is a next attempt.
pub(super) struct RetryPlanner<P> {
    pub(super) config: RetryConfig,
    pub(super) delays: BackoffDelays,
    pub(super) attempts_left: u32,
    pub(super) deadline: Option<Deadline>,
    pub(super) rules: P,
    pub(super) budget: SharedRetryBudget,
}

impl<P> RetryPlanner<P> {
    /// The wait before the next attempt and its permit; `None` if the result is final.
    fn plan<R, T>(&mut self, request: &R, result: Result<&T, &LayerError>) -> Option<(TimeSpan, RetryPermit)>
    where
        P: RetryRules<R, T>,
    {
        let now = self.budget.clock().now();
        let asked = match self.rules.advise(request, result, now) {
            RetryAdvice::Stop => return None,
            RetryAdvice::Retry => TimeSpan::ZERO,
            RetryAdvice::RetryAfter(asked) if asked > self.config.max_retry_after => return None,
            RetryAdvice::RetryAfter(asked) => asked,
        };
        let delay = self.delays.next_delay(fastrand::u64(..)).max(asked);
        if self.deadline.is_some_and(|deadline| deadline.has_passed(now + delay)) {
            return None;
        }
        Some((delay, self.budget.try_withdraw()?))
    }

    fn is_too_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline.has_passed(self.budget.clock().now()))
    }
}

impl<S: Service<R>, R, P> RetryFuture<S, R, P> {
    pub(super) fn once(inner: S::Future) -> Self {
        Self { state: AttemptState::Called { inner }, next: None }
    }

    pub(super) fn with_retries(inner: S::Future, service: S, request: R, planner: RetryPlanner<P>) -> Self {
        let next = Some(PendingRetry { service, request, planner });
        Self { state: AttemptState::Called { inner }, next }
    }
}

impl<S, R, P> PendingRetry<S, R, P>
where
    S: Service<R>,
    P: RetryRules<R, S::Response>,
{
    /// Sends the request again. Returns what a further attempt needs, if there may be one.
    fn send(mut self, permit: RetryPermit) -> (S::Future, Option<Self>) {
        let attempts_left = self.planner.attempts_left.saturating_sub(1);
        let copy = (attempts_left > 0).then(|| self.planner.rules.clone_request(&self.request)).flatten();
        permit.spend();
        let inner = self.service.call(self.request);
        let next = copy.map(|request| Self {
            service: self.service,
            request,
            planner: RetryPlanner { attempts_left, ..self.planner },
        });
        (inner, next)
    }
}

impl<S, R, P> Future for RetryFuture<S, R, P>
where
    S: Service<R>,
    S::Error: Into<BoxError> + 'static,
    P: RetryRules<R, S::Response>,
{
    type Output = Result<S::Response, LayerError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                AttemptStateProjection::Called { inner } => {
                    let result = ready!(inner.poll(cx)).map_err(LayerError::new);
                    let plan =
                        this.next.as_mut().and_then(|next| next.planner.plan(&next.request, result.as_ref()));
                    let Some((delay, permit)) = plan else { return Poll::Ready(result) };
                    let timer = sleep(delay.into());
                    this.state.set(AttemptState::Waiting { timer, permit: Some(permit) });
                }
                AttemptStateProjection::Waiting { timer, permit } => {
                    ready!(timer.poll(cx));
                    let permit = permit.take();
                    this.state.set(AttemptState::NotReady { permit });
                }
                AttemptStateProjection::NotReady { permit } => {
                    let Some(next) = this.next else { return Poll::Pending };
                    if let Err(error) = ready!(next.service.poll_ready(cx)) {
                        return Poll::Ready(Err(LayerError::new(error)));
                    }
                    if next.planner.is_too_late() {
                        return Poll::Ready(Err(LayerError::new(DeadlineExceeded)));
                    }
                    let (Some(next), Some(permit)) = (this.next.take(), permit.take()) else {
                        return Poll::Pending;
                    };
                    let (inner, next) = next.send(permit);
                    *this.next = next;
                    this.state.set(AttemptState::Called { inner });
                }
            }
        }
    }
}
