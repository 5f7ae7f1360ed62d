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

use super::client_shares::{Thresholds, WindowThreshold};
use super::select::{Caller, SelectError, SelectedServer, TriedServers};
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
    caller: Caller,
    /// Attempts that count against [`RetryPlan::attempts`].
    attempts: u32,
    tried: TriedServers,
    delays: Option<BackoffDelays>,
}

/// The next attempt of a request.
#[derive(Debug)]
pub(crate) struct NextAttempt<'u> {
    /// `None` if the request waits first: it must not hold the probe of a breaker meanwhile.
    pub(crate) selected: Option<SelectedServer<'u>>,
    /// How long to wait before it.
    pub(crate) wait: Duration,
    /// Spent when it is sent; `None` if it needs none.
    pub(crate) permit: Option<RetryPermit>,
}

impl<'u> RetryState<'u> {
    pub(crate) fn new(upstream: &'u UpstreamGroup, caller: Caller) -> Self {
        Self { upstream, caller, attempts: 1, tried: TriedServers::new(), delays: None }
    }

    /// The servers at which earlier attempts have failed.
    pub(crate) fn tried(&self) -> &[usize] {
        &self.tried
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
            && let Some(selected) = self.upstream.select_working(self.caller, &self.tried)
        {
            return Some(NextAttempt { selected: Some(selected), wait: Duration::ZERO, permit: None });
        }
        if self.attempts >= plan.attempts {
            return None;
        }
        let permit = self.withdraw()?;
        let (selected, is_other) = self.select(cause)?;
        self.attempts += 1;
        let wait = self.wait(plan, cause, is_other);
        let selected = if wait.is_zero() {
            Some(selected)
        } else {
            selected.cancel();
            None
        };
        Some(NextAttempt { selected, wait, permit: Some(permit) })
    }

    /// A permit of the budget. While requests of others succeed, one client uses at most half of it, rounded up: it gets one more
    /// only while more are left than it has used.
    fn withdraw(&self) -> Option<RetryPermit> {
        let (resilience, Caller { client, at, .. }) = (&self.upstream.resilience, self.caller);
        let left = WindowThreshold::of_budget(resilience.budget.remaining(), self.upstream.clock.now());
        let thresholds = Thresholds { in_a_row: None, window: Some(left) };
        let has_others = self.upstream.has_others(client, at);
        if !resilience.retry_shares.count(client, thresholds, has_others) {
            return None;
        }
        resilience.budget.try_withdraw()
    }

    /// Waits as long as the next attempt has to. Returns its server, if there is one then, and its permit.
    pub(crate) async fn wait_for(
        &self,
        NextAttempt { selected, wait, permit }: NextAttempt<'u>,
        cause: RetryCause,
    ) -> (Option<SelectedServer<'u>>, Option<RetryPermit>) {
        if selected.is_some() {
            return (selected, permit);
        }
        Box::pin(tokio::time::sleep(wait)).await;
        (self.select_after_wait(cause), permit)
    }

    /// The server of the next attempt after the wait. `None` if there is none any more.
    fn select_after_wait(&self, cause: RetryCause) -> Option<SelectedServer<'u>> {
        self.select(cause).map(|(selected, _)| selected)
    }

    /// A server that admits an attempt, and whether it was not tried yet.
    fn select(&self, cause: RetryCause) -> Option<(SelectedServer<'u>, bool)> {
        match self.upstream.select(self.caller, &self.tried) {
            Ok(selected) => Some((selected, true)),
            Err(SelectError::NoServer) if can_try_again(&self.upstream.resilience.plan.retry, cause) => {
                Some((self.upstream.select(self.caller, &[]).ok()?, false))
            }
            Err(SelectError::NoServer | SelectError::BreakerOpen(_)) => None,
        }
    }

    /// After a connect error or a reset, a request goes to another server at once; after its first reset also to the same
    /// one, since a pooled connection may have been closed meanwhile. After a timeout or a status it waits, wherever it goes:
    /// the upstream may be overloaded.
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

#[cfg(test)]
mod tests {
    use tidegate_core::{BreakerConfig, CallOutcome, TimeSpan};
    use tidegate_policy::{BreakerPlan, BreakerScope, ResiliencePlan};

    use super::super::client_shares::{ClientId, Evidence};
    use super::super::server::tests::{URLS, group};
    use super::*;

    fn caller(group: &UpstreamGroup) -> Caller {
        let (key, client) = (group.sticky_key(|| b"client"), ClientId::default());
        Caller { key, client, at: group.clock.now() }
    }

    #[test]
    fn retry_that_waits_does_not_hold_the_probe_of_a_breaker() {
        let config = BreakerConfig { failures: Some(1), ..BreakerConfig::default() };
        let breaker = Some(BreakerPlan { config, scope: BreakerScope::Server });
        let mut plan = ResiliencePlan { breaker, ..ResiliencePlan::default() };
        plan.retry.on.statuses.push(503);
        let (group, clock) = group(&URLS[..1], plan);
        let caller = caller(&group);
        group.select(caller, &[]).unwrap().breaker.unwrap().record(CallOutcome::Failure, false, || false);
        clock.advance(TimeSpan::from_secs(60));
        let mut retry = RetryState::new(&group, caller);
        let cause = RetryCause::Status(503, None);
        let next = retry.next(0, cause, true).unwrap();
        assert!(next.selected.is_none() && !next.wait.is_zero());
        let probe = group.select(caller, &[]).expect("another request can be the probe");
        assert!(retry.select_after_wait(cause).is_none(), "one probe at a time");
        probe.breaker.unwrap().cancel();
        assert!(retry.select_after_wait(cause).is_some());
    }

    #[test]
    fn request_moves_without_budget_only_to_servers_that_work_also_if_none_is_ejected() {
        let (group, _) = group(&URLS, ResiliencePlan { eject: None, ..ResiliencePlan::default() });
        let caller = caller(&group);
        let moves = |group| {
            let mut retry = RetryState::new(group, caller);
            retry.next(0, RetryCause::Connect, true).is_some_and(|next| next.permit.is_none())
        };
        assert!(moves(&group));
        let ejected = (0..URLS.len())
            .filter_map(|index| group.record_outcome(index, CallOutcome::Failure, Evidence::default()));
        assert_eq!(ejected.count(), 0);
        assert!(!moves(&group), "all have failed");
        group.record_outcome(3, CallOutcome::Success, Evidence::default());
        assert!(moves(&group));
    }
}
