//! Whether a request is sent again, when, and to which server.
//!
//! Three rules bound retries:
//! - A request that a server may have received is sent again only if its method allows it and its body is complete.
//! - Every retry needs a permit of the upstream's budget, so that retries stay a small share of the requests. Only a server
//!   that works needs none after another one could not be reached: that moves a request and adds none.
//! - A retry goes to a server that was not tried, if there is one.

use std::time::Duration;

use tidegate_core::BackoffDelays;
use tidegate_policy::{RetryCauses, RetryPlan};
use tidegate_tower::retry::RetryPermit;

use super::balance::StickyKey;
use super::select::{SelectError, SelectedServer, TriedServers};
use super::server::UpstreamGroup;

/// Why an attempt may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryCause {
    /// Nothing was sent: no connection was made.
    Connect,
    /// The connection broke before the first byte of a response.
    Reset,
    /// No response started in time.
    Timeout,
    /// The server responded with this status. It may say how long to wait.
    Status(u16, Option<Duration>),
}

impl RetryCause {
    pub(crate) fn is_in(self, causes: &RetryCauses) -> bool {
        match self {
            Self::Connect => causes.connect,
            Self::Reset => causes.reset,
            Self::Timeout => causes.timeout,
            Self::Status(status, _) => causes.statuses.binary_search(&status).is_ok(),
        }
    }
}

/// Whether a server that was tried may be tried again. One that cannot be reached is not back within the wait before a single
/// retry, so that would only delay the error.
fn can_try_again(plan: &RetryPlan, cause: RetryCause) -> bool {
    cause != RetryCause::Connect || plan.attempts > 2
}

/// The attempts of one request.
#[derive(Debug)]
pub(crate) struct RetryState<'u> {
    upstream: &'u UpstreamGroup,
    key: StickyKey,
    /// Attempts that count against [`RetryPlan::attempts`].
    attempts: u32,
    tried: TriedServers,
    delays: Option<BackoffDelays>,
}

/// The next attempt of a request.
#[derive(Debug)]
pub(crate) struct NextAttempt<'u> {
    pub(crate) selected: SelectedServer<'u>,
    /// How long to wait before it.
    pub(crate) wait: Duration,
    /// Spent when it is sent; `None` if it needs none.
    pub(crate) permit: Option<RetryPermit>,
}

impl<'u> RetryState<'u> {
    pub(crate) fn new(upstream: &'u UpstreamGroup, key: StickyKey) -> Self {
        Self { upstream, key, attempts: 1, tried: TriedServers::new(), delays: None }
    }

    /// The next attempt after the one at `failed`. `None` if there is none: the request cannot be repeated
    /// (`can_repeat` is whether it may be sent to a second server), or its attempts or the budget are used up.
    pub(crate) fn next(
        &mut self,
        failed: usize,
        cause: RetryCause,
        can_repeat: bool,
    ) -> Option<NextAttempt<'u>> {
        let plan = &self.upstream.resilience.plan.retry;
        let is_allowed = cause.is_in(&plan.on) && (can_repeat || cause == RetryCause::Connect);
        if !is_allowed || plan.attempts <= 1 {
            return None;
        }
        self.tried.push(failed);
        if cause == RetryCause::Connect
            && let Some(selected) = self.upstream.select_working(self.key, &self.tried)
        {
            return Some(NextAttempt { selected, wait: Duration::ZERO, permit: None });
        }
        if self.attempts >= plan.attempts {
            return None;
        }
        let permit = self.upstream.resilience.budget.try_withdraw()?;
        let (selected, is_other) = match self.upstream.select(self.key, &self.tried) {
            Ok(selected) => (selected, true),
            Err(SelectError::NoServer) if can_try_again(plan, cause) => {
                (self.upstream.select(self.key, &[]).ok()?, false)
            }
            Err(SelectError::NoServer | SelectError::BreakerOpen(_)) => return None,
        };
        self.attempts += 1;
        let wait = self.wait(plan, cause, is_other);
        Some(NextAttempt { selected, wait, permit: Some(permit) })
    }

    /// A request goes to another server at once, and over another connection if a pooled one was closed meanwhile. Otherwise
    /// it waits: the server needs time to recover.
    fn wait(&mut self, plan: &RetryPlan, cause: RetryCause, is_other: bool) -> Duration {
        let is_first = self.attempts == 2;
        let mut backoff = || {
            let delays = self.delays.get_or_insert_with(|| plan.backoff.delays());
            Duration::from(delays.next_delay(fastrand::u64(..)))
        };
        match cause {
            RetryCause::Connect if is_other => Duration::ZERO,
            RetryCause::Reset if is_other || is_first => Duration::ZERO,
            RetryCause::Status(_, Some(retry_after)) => retry_after.max(backoff()),
            _ => backoff(),
        }
    }
}
