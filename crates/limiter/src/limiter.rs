//! The limiter: combines a policy and a store.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tidegate_core::{ActionSet, Cost, CounterKey, Decision, Timestamp, Verdict};
use tidegate_policy::{
    ActivePolicy, Admission, Bans, Exclusion, Facts, MatchedRequest, RuleClient, RuleSharing, RuntimeData,
    Scratch,
};
use tidegate_store::{Clock, Override, Penalties, Permits, RetainedLimits, RuleSettings, Store, StoreError};

use crate::action::{self, Resolution};
use crate::activation::{ActivationListener, ActivationListeners};
use crate::ban_list::BanList;
use crate::conclusion::{
    SkipReason, exhausted, refuse, refuse_peeked, refuse_without, serve, skip, store_failed,
};
use crate::concurrency::{self, AcquiredPermits, SharedRefusal};
use crate::lockout::{self, LockOuts};
use crate::report::RulingReport;
use crate::reset_list::ResetList;
use crate::rule_operations::UnknownRule;
use crate::ruling::{ActRuling, RefuseReason, Ruling, ServeReason, ServeRuling};

/// Admits or rejects requests.
#[derive(Debug)]
pub struct Limiter<S> {
    pub(crate) shared: Arc<SharedStore<S>>,
    policy: ArcSwap<ActivePolicy>,
    /// The limits of the active policy, registered with the store. Locked while a policy is activated.
    retained: Mutex<RetainedLimits>,
    activations: ActivationListeners,
    bans: BanList,
    penalties: Arc<Penalties>,
    permits: Arc<Permits>,
}

/// The store and the clock, for charges and refunds after a request.
#[derive(Debug)]
pub(crate) struct SharedStore<S> {
    pub(crate) store: Arc<S>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) resets: ResetList,
}

/// The input of [`Limiter::check_rule`].
#[derive(Clone, Copy, Debug)]
pub struct RuleCheck<'c> {
    /// The name of the rule.
    pub rule: &'c str,
    /// The client. Rules that count all clients together use it only for bans and exemptions.
    pub client: &'c RuleClient,
    /// The cost.
    pub cost: Cost,
}

/// When a request is checked, and for which interface. A time alone is for one that performs no action.
#[derive(Clone, Copy, Debug)]
pub struct CheckContext {
    /// The time of the check.
    pub now: Timestamp,
    /// The actions that the interface performs in place of rejections.
    pub performs: ActionSet,
}

impl From<Timestamp> for CheckContext {
    fn from(now: Timestamp) -> Self {
        Self { now, performs: ActionSet::NONE }
    }
}

/// Whether a check charges anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charging {
    /// The limits are charged, permits are acquired, violations are recorded.
    On,
    /// Nothing is changed. Lock-outs apply; concurrency limits do not: whether a permit is left is known only when it is taken.
    Off,
}

/// What the store is asked about a request.
enum StoreStep<'a> {
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

/// A policy whose limits the store can count. [`Limiter::activate`] applies it.
#[derive(Debug)]
pub struct PreparedPolicy {
    policy: Arc<ActivePolicy>,
    retained: RetainedLimits,
}

impl PreparedPolicy {
    /// The policy.
    pub fn policy(&self) -> &Arc<ActivePolicy> {
        &self.policy
    }
}

impl<S: Store + 'static> Limiter<S> {
    /// A limiter that enforces `active` with the counters of `store`. `clock` is read only when reservations are settled or
    /// charges refunded; checks take the time from the caller.
    pub fn new(active: ActivePolicy, store: Arc<S>, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let retained = retain_limits(&*store, &active, clock.now())?;
        store.apply_settings(&rule_settings(&active));
        Ok(Self {
            shared: Arc::new(SharedStore { store, clock, resets: ResetList::default() }),
            policy: ArcSwap::from_pointee(active),
            retained: Mutex::new(retained),
            activations: ActivationListeners::default(),
            bans: BanList::default(),
            penalties: Arc::default(),
            permits: Arc::default(),
        })
    }

    /// The active policy. A request must use one policy from start to end.
    pub fn policy(&self) -> Arc<ActivePolicy> {
        self.policy.load_full()
    }

    /// Registers the limits of `active` with the store. The policy changes nothing until it is activated.
    pub fn prepare(&self, active: ActivePolicy) -> Result<PreparedPolicy, StoreError> {
        let retained = retain_limits(self.store(), &active, self.shared.clock.now())?;
        Ok(PreparedPolicy { policy: Arc::new(active), retained })
    }

    /// Activates a policy. Counters stay.
    pub fn activate(&self, PreparedPolicy { policy, retained }: PreparedPolicy) {
        let mut current = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the first decision of the new policy.
        self.store().apply_settings(&rule_settings(&policy));
        self.activations.call(&policy);
        self.policy.store(policy);
        *current = retained;
    }

    /// Calls `listener` with the active policy, and from now on with every other policy before it becomes active. The listener
    /// misses none, but must not activate one.
    pub fn on_activation(&self, listener: ActivationListener) {
        let _activating = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
        listener(&self.policy.load());
        self.activations.add(listener);
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// Replaces the bans that apply in addition to those of the policy. They apply to every check that starts after this returns.
    pub fn ban(&self, bans: Bans) {
        self.bans.replace(bans);
    }

    /// The bans in addition to those of the policy, including expired ones.
    pub fn bans(&self) -> Arc<Bans> {
        self.bans.all()
    }

    /// Replaces the limit of a counter, or with `None` ends that. The spent units stay spent. What was charged before the override
    /// begins, or shortly before its end, is not refunded; such a refund says so.
    pub async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.store().override_limit(key, replacement, now).await
    }

    /// The clients that are locked out, and those with recorded violations.
    pub fn penalties(&self) -> &Arc<Penalties> {
        &self.penalties
    }

    /// The concurrency permits.
    pub fn permits(&self) -> &Arc<Permits> {
        &self.permits
    }

    /// Checks a request against `policy`: the active policy, or the one by which the request was routed.
    ///
    /// Banned and exempt clients are neither charged nor counted. An admitted request is charged before the future is
    /// ready; if the future is dropped before that, it may have been charged.
    pub fn check<'a>(
        &self,
        policy: &'a ActivePolicy,
        facts: &Facts<'_>,
        scratch: &'a mut Scratch,
        context: impl Into<CheckContext>,
    ) -> impl Future<Output = Ruling<'a>> + Send {
        let context = context.into();
        self.decide(policy, context, Charging::On, move || {
            self.match_request(policy, facts, scratch, context)
        })
    }

    /// Checks a request like [`check`](Self::check), if that needs no wait. `None` if the caller has to await `check`; nothing is
    /// charged then.
    pub fn try_check<'a>(
        &self,
        policy: &'a ActivePolicy,
        facts: &Facts<'_>,
        scratch: &'a mut Scratch,
        context: impl Into<CheckContext>,
    ) -> Option<Ruling<'a>> {
        let context = context.into();
        self.try_decide(policy, context.now, self.match_request(policy, facts, scratch, context))
    }

    /// What [`check`](Self::check) would return now, without charging or recording anything. Concurrency limits are not
    /// checked.
    pub fn preview<'a>(
        &self,
        policy: &'a ActivePolicy,
        facts: &Facts<'_>,
        scratch: &'a mut Scratch,
        context: impl Into<CheckContext>,
    ) -> impl Future<Output = Ruling<'a>> + Send {
        let context = context.into();
        self.decide(policy, context, Charging::Off, move || {
            self.match_request(policy, facts, scratch, context)
        })
    }

    /// Checks one rule for a client that the caller has identified. The other rules of the policy are not checked. Bans and
    /// exemptions apply as far as they concern the identities of the client.
    pub async fn check_rule<'a>(
        &self,
        policy: &'a ActivePolicy,
        check: RuleCheck<'_>,
        scratch: &'a mut Scratch,
        context: impl Into<CheckContext> + Send,
    ) -> Result<Ruling<'a>, UnknownRule> {
        let context = context.into();
        let matched = self.match_rule(policy, check, scratch, context)?;
        Ok(self.decide(policy, context, Charging::On, move || matched).await)
    }

    /// Checks a rule like [`check_rule`](Self::check_rule), if that needs no wait. `None` if the caller has to await `check_rule`;
    /// nothing is charged then.
    pub fn try_check_rule<'a>(
        &self,
        policy: &'a ActivePolicy,
        check: RuleCheck<'_>,
        scratch: &'a mut Scratch,
        context: impl Into<CheckContext> + Send,
    ) -> Result<Option<Ruling<'a>>, UnknownRule> {
        let context = context.into();
        Ok(self.try_decide(policy, context.now, self.match_rule(policy, check, scratch, context)?))
    }

    /// What [`check_rule`](Self::check_rule) would return now, without charging or recording anything.
    pub async fn preview_rule<'a>(
        &self,
        policy: &'a ActivePolicy,
        check: RuleCheck<'_>,
        scratch: &'a mut Scratch,
        context: impl Into<CheckContext> + Send,
    ) -> Result<Ruling<'a>, UnknownRule> {
        let context = context.into();
        let matched = self.match_rule(policy, check, scratch, context)?;
        Ok(self.decide(policy, context, Charging::Off, move || matched).await)
    }

    /// The checks of a request, unless its client is banned or exempt.
    fn match_request<'a>(
        &self,
        policy: &'a ActivePolicy,
        facts: &Facts<'_>,
        scratch: &'a mut Scratch,
        CheckContext { now, performs }: CheckContext,
    ) -> Result<MatchedRequest<'a>, SkipReason> {
        let bans = self.bans.any();
        let bans = bans.as_deref().map(|bans| &**bans);
        let runtime = RuntimeData { directory: policy.directory.as_deref(), bans };
        match policy.matcher.admit(facts, runtime, now, scratch) {
            Admission::Banned { by } => Err(SkipReason::excluded(by)),
            Admission::Exempt { why } => Err(SkipReason::Exempt(why)),
            Admission::Checked(matched) => Ok(with_actions(policy, matched, performs)),
        }
    }

    /// The check of a rule, unless its client is banned or exempt.
    fn match_rule<'a>(
        &self,
        policy: &'a ActivePolicy,
        RuleCheck { rule, client, cost }: RuleCheck<'_>,
        scratch: &'a mut Scratch,
        CheckContext { now, performs }: CheckContext,
    ) -> Result<Result<MatchedRequest<'a>, SkipReason>, UnknownRule> {
        let matched = policy.matcher.match_rule(rule, client.key(), cost, scratch).ok_or(UnknownRule)?;
        let bans = self.bans.any();
        let bans = bans.as_deref().map(|bans| &**bans);
        let runtime = RuntimeData { directory: policy.directory.as_deref(), bans };
        Ok(match policy.matcher.exclusion(client, runtime, now) {
            None => Ok(with_actions(policy, matched, performs)),
            Some(Exclusion::Banned(by)) => Err(SkipReason::excluded(by)),
            Some(Exclusion::Exempt(why)) => Err(SkipReason::Exempt(why)),
        })
    }

    /// Decides about the request whose checks `find` returns: lock-outs, permits, limits.
    pub(crate) async fn decide<'a>(
        &self,
        policy: &'a ActivePolicy,
        CheckContext { now, .. }: CheckContext,
        charging: Charging,
        find: impl FnOnce() -> Result<MatchedRequest<'a>, SkipReason> + Send,
    ) -> Ruling<'a> {
        let matched = match find() {
            Ok(matched) => matched,
            Err(reason) => return skip(policy, reason, now),
        };
        match self.decide_locally(policy, &matched, now, charging) {
            StoreStep::Decide(acquired) => {
                let decided = self.store().decide(matched.checks(), now).await;
                self.conclude(policy, &matched, DecisionSetup { acquired, now, charging }, decided)
            }
            StoreStep::Serve(acquired) => serve(&matched, acquired, now, ServeReason::WithinLimits),
            // Boxed, so that the futures of other requests are small.
            StoreStep::Peek => {
                let peeked = Box::pin(self.store().peek(matched.checks(), now)).await;
                self.conclude(policy, &matched, DecisionSetup::peek(now), peeked)
            }
            StoreStep::Refuse(report) => Box::pin(self.refuse_uncharged(&matched, report)).await,
            StoreStep::AcquirePermits => {
                Box::pin(self.decide_with_shared_permits(policy, &matched, now)).await
            }
        }
    }

    /// Decides like [`decide`](Self::decide), if the store need not be awaited.
    #[expect(clippy::inline_always, reason = "see conclude")]
    #[inline(always)]
    fn try_decide<'a>(
        &self,
        policy: &'a ActivePolicy,
        now: Timestamp,
        found: Result<MatchedRequest<'a>, SkipReason>,
    ) -> Option<Ruling<'a>> {
        let matched = match found {
            Ok(matched) => matched,
            Err(reason) => return Some(skip(policy, reason, now)),
        };
        let charging = Charging::On;
        match self.decide_locally(policy, &matched, now, charging) {
            StoreStep::Decide(acquired) => {
                let decided = self.store().try_decide(matched.checks(), now)?;
                Some(self.conclude(policy, &matched, DecisionSetup { acquired, now, charging }, decided))
            }
            StoreStep::Serve(acquired) => Some(serve(&matched, acquired, now, ServeReason::WithinLimits)),
            StoreStep::Refuse(report) => {
                let peeked = self.store().try_peek(matched.checks(), now)?;
                Some(refuse_peeked(*report, peeked))
            }
            StoreStep::Peek | StoreStep::AcquirePermits => None,
        }
    }

    /// Decides what this node knows without the store: lock-outs and its own permits.
    #[expect(clippy::inline_always, reason = "the permits are passed on in place")]
    #[inline(always)]
    fn decide_locally<'a>(
        &self,
        policy: &'a ActivePolicy,
        matched: &MatchedRequest<'a>,
        now: Timestamp,
        charging: Charging,
    ) -> StoreStep<'a> {
        // A client that is locked out is not charged: its limits would be used up after the lock-out.
        if policy.matcher.has_penalties() {
            let lock_outs = lockout::active(&self.penalties, matched, now);
            if !lock_outs.is_empty() {
                let report = RulingReport { lock_outs, ..RulingReport::new(matched.applied(), now) };
                return StoreStep::Refuse(Box::new(report));
            }
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

    /// Decides about permits and limits if the store grants some of the permits. All are released if a limit rejects.
    async fn decide_with_shared_permits<'a>(
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
                return refuse_without(report, RefuseReason::StoreUnavailable);
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
    fn conclude_with_actions<'a>(
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
            Resolution::Serve { delay, slowed_by } => Ruling::Serve(ServeRuling {
                reason: ServeReason::WithinLimits,
                permits,
                delay,
                action: slowed_by.and_then(|index| report.action(index)),
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
        }
        report
    }

    /// Refuses a request before its limits were charged. Peeks at the limits so that `retry_after` covers them: otherwise the
    /// client could retry too early and be refused again.
    async fn refuse_uncharged<'a>(
        &self,
        matched: &MatchedRequest<'a>,
        report: Box<RulingReport<'a>>,
    ) -> Ruling<'a> {
        let peeked = self.store().peek(matched.checks(), report.at).await;
        refuse_peeked(*report, peeked)
    }
}

/// The checks, with the actions that the interface performs.
#[expect(clippy::inline_always, reason = "usually there are none, and a matched request is large")]
#[inline(always)]
fn with_actions<'a>(
    policy: &ActivePolicy,
    mut matched: MatchedRequest<'a>,
    performs: ActionSet,
) -> MatchedRequest<'a> {
    if policy.matcher.has_actions() {
        matched.perform(performs);
    }
    matched
}

fn retain_limits(
    store: &impl Store,
    active: &ActivePolicy,
    now: Timestamp,
) -> Result<RetainedLimits, StoreError> {
    let limits: Vec<_> = active.matcher.plan().rate_limits.iter().map(|rule| rule.limit).collect();
    store.retain_limits(&limits, now)
}

/// How nodes share the rules of a policy.
fn rule_settings(active: &ActivePolicy) -> Vec<RuleSettings> {
    let limits = &active.matcher.plan().rate_limits;
    let rates = limits.iter().map(|rule| (rule.id, rule.sharing));
    let permits = limits.concurrent.iter().map(|rule| (rule.id, rule.sharing));
    let settings = rates.chain(permits).filter_map(|(rule, sharing)| {
        let RuleSharing { coordination, on_store_failure } = sharing?;
        Some(RuleSettings { rule, coordination, on_store_failure })
    });
    settings.collect()
}
