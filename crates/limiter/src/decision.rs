//! From the checks of a request to its ruling: what this node knows, the decision of the store, and what follows.

use tidegate_core::{ActionKind, Decision, OwnedKey, Timestamp, Verdict};
use tidegate_policy::{ActivePolicy, MatchedRequest};
use tidegate_store::{Store, StoreError};

use crate::action::{self, Resolution};
use crate::conclusion::{
    SkipReason, exhausted, refuse, refuse_peeked, refuse_without, serve, skip, store_failed,
};
use crate::concurrency::{self, AcquiredPermits, SharedRefusal};
use crate::limiter::{CheckContext, Limiter, with_actions};
use crate::lockout::{self, LockOuts};
use crate::report::RulingReport;
use crate::ruling::{ActRuling, RefuseReason, Ruling, ServeReason, ServeRuling};

/// Whether a check charges anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charging {
    /// The limits are charged, permits are acquired, violations are recorded.
    On,
    /// Nothing is changed. Lock-outs apply; concurrency limits do not: whether a permit is left is known only when it is taken.
    Off,
}

/// What the store is asked about a request.
pub(crate) enum StoreStep<'a> {
    /// To decide the checks. The request has its permits.
    Decide(AcquiredPermits),
    /// To read the checks.
    Peek,
    /// Nothing: there are no checks.
    Serve(AcquiredPermits),
    /// To read the limits of a request that is refused. Boxed, because that is rare.
    Refuse(Box<RulingReport<'a>>),
    /// For permits that nodes share, before it decides.
    AcquirePermits,
    /// Nothing: others wait for the counter of this check.
    Behind(usize),
}

/// What the decisions of this node depend on.
#[derive(Clone, Copy)]
pub(crate) struct LocalContext<'c> {
    pub(crate) now: Timestamp,
    pub(crate) charging: Charging,
    /// The counter at which the turn of the request has come.
    pub(crate) place: Option<&'c OwnedKey>,
}

/// How a decision of the store was asked for.
struct DecisionSetup {
    acquired: AcquiredPermits,
    now: Timestamp,
    charging: Charging,
}

impl DecisionSetup {
    fn peek(now: Timestamp) -> Self {
        Self { acquired: AcquiredPermits::default(), now, charging: Charging::Off }
    }
}

impl<S: Store + 'static> Limiter<S> {
    /// Decides about the request whose checks `find` returns: lock-outs, permits, limits.
    pub(crate) async fn decide<'a>(
        &self,
        policy: &'a ActivePolicy,
        CheckContext { now, performs }: CheckContext,
        charging: Charging,
        find: impl FnOnce() -> Result<MatchedRequest<'a>, SkipReason> + Send,
    ) -> Ruling<'a> {
        let mut found = find();
        let matched = match with_actions(policy, &mut found, performs) {
            Ok(matched) => matched,
            Err(reason) => return skip(policy, reason, now),
        };
        match self.decide_locally(policy, matched, LocalContext { now, charging, place: None }) {
            StoreStep::Decide(acquired) => {
                let decided = self.store().decide(matched.checks(), now).await;
                self.conclude(policy, matched, DecisionSetup { acquired, now, charging }, decided)
            }
            StoreStep::Serve(acquired) => serve(matched, acquired, now, ServeReason::WithinLimits),
            // Boxed, so that the futures of other requests are small.
            StoreStep::Peek => {
                let peeked = Box::pin(self.store().peek(matched.checks(), now)).await;
                self.conclude(policy, matched, DecisionSetup::peek(now), peeked)
            }
            StoreStep::Refuse(report) => Box::pin(self.refuse_uncharged(matched, report)).await,
            StoreStep::AcquirePermits => {
                Box::pin(self.decide_with_shared_permits(policy, matched, now)).await
            }
            StoreStep::Behind(index) if matched.performed().contains(ActionKind::Wait) => {
                Ruling::Act(Box::new(ActRuling::behind(matched, index, now)))
            }
            StoreStep::Behind(index) => {
                let turn = self.turn_behind(matched, index).unwrap_or(now);
                Ruling::Refuse(Box::pin(self.refuse_behind(matched.clone(), (index, turn), now)).await)
            }
        }
    }

    /// Decides like [`decide`](Self::decide), if the store need not be awaited.
    #[expect(clippy::inline_always, reason = "see conclude")]
    #[inline(always)]
    pub(crate) fn try_decide<'a>(
        &self,
        policy: &'a ActivePolicy,
        CheckContext { now, performs }: CheckContext,
        mut found: Result<MatchedRequest<'a>, SkipReason>,
    ) -> Option<Ruling<'a>> {
        let matched = match with_actions(policy, &mut found, performs) {
            Ok(matched) => matched,
            Err(reason) => return Some(skip(policy, reason, now)),
        };
        let charging = Charging::On;
        match self.decide_locally(policy, matched, LocalContext { now, charging, place: None }) {
            StoreStep::Decide(acquired) => {
                let decided = self.store().try_decide(matched.checks(), now)?;
                Some(self.conclude(policy, matched, DecisionSetup { acquired, now, charging }, decided))
            }
            StoreStep::Serve(acquired) => Some(serve(matched, acquired, now, ServeReason::WithinLimits)),
            StoreStep::Refuse(report) => {
                let peeked = self.store().try_peek(matched.checks(), now)?;
                Some(refuse_peeked(*report, peeked))
            }
            StoreStep::Behind(index) if matched.performed().contains(ActionKind::Wait) => {
                Some(Ruling::Act(Box::new(ActRuling::behind(matched, index, now))))
            }
            StoreStep::Peek | StoreStep::AcquirePermits | StoreStep::Behind(_) => None,
        }
    }

    /// Decides what this node knows without the store: lock-outs and its own permits.
    #[expect(clippy::inline_always, reason = "the permits are passed on in place")]
    #[inline(always)]
    pub(crate) fn decide_locally<'a>(
        &self,
        policy: &'a ActivePolicy,
        matched: &MatchedRequest<'a>,
        context: LocalContext<'_>,
    ) -> StoreStep<'a> {
        let LocalContext { now, charging, .. } = context;
        if policy.matcher.has_penalties_or_waits()
            && let Some(step) = self.refuse_or_wait(policy, matched, context)
        {
            return step;
        }
        if charging == Charging::Off {
            return StoreStep::Peek;
        }
        if policy.matcher.has_shared_permits() {
            return StoreStep::AcquirePermits;
        }
        // Before anything is charged: dropping permits is cheaper than a refund.
        match concurrency::acquire(&self.permits, matched) {
            Ok(acquired) if matched.checks().is_empty() => StoreStep::Serve(acquired),
            Ok(acquired) => StoreStep::Decide(acquired),
            Err((rule, shadow)) => StoreStep::Refuse(Box::new(exhausted(matched, rule, shadow, now))),
        }
    }

    /// Lock-outs, and requests that have to wait behind others.
    #[inline(never)]
    fn refuse_or_wait<'a>(
        &self,
        policy: &'a ActivePolicy,
        matched: &MatchedRequest<'a>,
        LocalContext { now, charging, place }: LocalContext<'_>,
    ) -> Option<StoreStep<'a>> {
        if let Some(report) = self.locked_out(policy, matched, now) {
            return Some(StoreStep::Refuse(report));
        }
        let behind = if charging == Charging::On { self.behind(matched, place) } else { None };
        behind.map(StoreStep::Behind)
    }

    /// The report of a request whose client is locked out. It is not charged: its limits would be used up after the lock-out.
    pub(crate) fn locked_out<'a>(
        &self,
        policy: &ActivePolicy,
        matched: &MatchedRequest<'a>,
        now: Timestamp,
    ) -> Option<Box<RulingReport<'a>>> {
        if !policy.matcher.has_penalties() {
            return None;
        }
        let lock_outs = lockout::active(&self.penalties, matched, now);
        let report = RulingReport { lock_outs, ..RulingReport::new(matched.applied(), now) };
        (!report.lock_outs.is_empty()).then(|| Box::new(report))
    }

    /// Decides about permits and limits if the store grants some of the permits. All are released if a limit rejects.
    pub(crate) async fn decide_with_shared_permits<'a>(
        &self,
        policy: &ActivePolicy,
        matched: &MatchedRequest<'a>,
        now: Timestamp,
    ) -> Ruling<'a> {
        let acquired = concurrency::acquire_shared(&self.permits, self.store(), matched, now).await;
        let acquired = match acquired {
            Ok(acquired) => acquired,
            Err(SharedRefusal::Exhausted(rule, shadow)) => {
                let report = Box::new(exhausted(matched, rule, shadow, now));
                return self.refuse_uncharged(matched, report).await;
            }
            Err(SharedRefusal::Failed(shadow)) => {
                let report = RulingReport { shadow, ..RulingReport::new(matched.applied(), now) };
                return Ruling::Refuse(refuse_without(report, RefuseReason::StoreUnavailable));
            }
        };
        if matched.checks().is_empty() {
            return serve(matched, acquired, now, ServeReason::WithinLimits);
        }
        let decided = self.store().decide(matched.checks(), now).await;
        self.conclude(policy, matched, DecisionSetup { acquired, now, charging: Charging::On }, decided)
    }

    /// Turns the store's decision into a ruling.
    #[expect(clippy::inline_always, reason = "decisions and rulings are large: the ruling is built in place")]
    #[inline(always)]
    fn conclude<'a>(
        &self,
        policy: &ActivePolicy,
        matched: &MatchedRequest<'a>,
        DecisionSetup { acquired, now, charging }: DecisionSetup,
        decided: Result<Decision, StoreError>,
    ) -> Ruling<'a> {
        let Ok(decision) = decided else { return store_failed(matched, acquired, now) };
        let is_peeked = charging == Charging::Off;
        if policy.matcher.has_actions() {
            return self.conclude_with_actions(policy, matched, (acquired, is_peeked), decision);
        }
        let AcquiredPermits { permits, shadow } = acquired;
        let Verdict::Pass { wait: delay } = decision.verdict else {
            let lock_outs = if policy.matcher.has_penalties() && !is_peeked {
                lockout::record_violations(&self.penalties, matched, &decision, now)
            } else {
                LockOuts::new()
            };
            let report = RulingReport::new(matched.applied(), decision.at);
            return refuse(RulingReport { decision: Some(decision), is_peeked, lock_outs, shadow, ..report });
        };
        let primary = matched.tightest(&decision);
        let may_be_settled = policy.matcher.has_settlements();
        let report = RulingReport::new(matched.applied(), decision.at);
        let report = RulingReport { decision: Some(decision), is_peeked, shadow, primary, ..report };
        Ruling::Serve(ServeRuling {
            report,
            reason: ServeReason::WithinLimits,
            permits,
            delay,
            action: None,
            may_be_settled,
        })
    }

    /// Turns the store's decision into a ruling, if a rule of the policy has an action.
    #[cold]
    #[inline(never)]
    pub(crate) fn conclude_with_actions<'a>(
        &self,
        policy: &ActivePolicy,
        matched: &MatchedRequest<'a>,
        (acquired, is_peeked): (AcquiredPermits, bool),
        decision: Decision,
    ) -> Ruling<'a> {
        let resolution = action::resolve(matched, &decision);
        let AcquiredPermits { permits, shadow } = acquired;
        let primary = matched.tightest(&decision);
        let report = RulingReport::new(matched.applied(), decision.at);
        let report = RulingReport { decision: Some(decision), is_peeked, shadow, primary, ..report };
        let may_be_settled = policy.matcher.has_settlements();
        match resolution {
            Resolution::Serve { delay, noted } => Ruling::Serve(ServeRuling {
                reason: ServeReason::WithinLimits,
                permits,
                delay,
                action: noted.and_then(|index| report.action(index)),
                may_be_settled,
                report,
            }),
            Resolution::Act { index, delay } => {
                let matched = matched.clone();
                Ruling::Act(Box::new(ActRuling { report, permits, delay, index, may_be_settled, matched }))
            }
            Resolution::Refuse => refuse(self.with_violations(matched, report)),
        }
    }

    /// Records the violations of a request that is refused, and its lock-outs in its report.
    pub(crate) fn with_violations<'a>(
        &self,
        matched: &MatchedRequest<'a>,
        mut report: RulingReport<'a>,
    ) -> RulingReport<'a> {
        if let Some(decision) = report.decision.as_ref().filter(|_| !report.is_peeked) {
            report.lock_outs = lockout::record_violations(&self.penalties, matched, decision, report.at);
            for (index, _) in &report.lock_outs {
                if let Some(check) = matched.checks().get(*index) {
                    self.waits.lock_out(check.key);
                }
            }
        }
        report
    }

    /// Refuses a request before its limits were charged. Peeks at the limits so that `retry_after` covers them: otherwise the
    /// client could retry too early and be refused again.
    pub(crate) async fn refuse_uncharged<'a>(
        &self,
        matched: &MatchedRequest<'a>,
        report: Box<RulingReport<'a>>,
    ) -> Ruling<'a> {
        let peeked = self.store().peek(matched.checks(), report.at).await;
        refuse_peeked(*report, peeked)
    }
}
