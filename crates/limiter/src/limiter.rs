//! The limiter: combines a policy and a store.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tidegate_core::{ActionSet, Cost, CounterKey, Timestamp};
use tidegate_policy::{
    ActivePolicy, Admission, Bans, Exclusion, Facts, MatchedRequest, RuleClient, RuleSharing, RuntimeData,
    Scratch,
};
use tidegate_store::{Clock, Override, Penalties, Permits, RetainedLimits, RuleSettings, Store, StoreError};

use crate::activation::{ActivationListener, ActivationListeners};
use crate::ban_list::BanList;
use crate::conclusion::SkipReason;
use crate::decision::Charging;
use crate::reset_list::ResetList;
use crate::rule_operations::UnknownRule;
use crate::ruling::Ruling;
use crate::wait::WaitRoom;

/// Admits or rejects requests.
#[derive(Debug)]
pub struct Limiter<S> {
    pub(crate) shared: Arc<SharedStore<S>>,
    policy: ArcSwap<ActivePolicy>,
    /// The limits of the active policy, registered with the store. Locked while a policy is activated.
    retained: Mutex<RetainedLimits>,
    activations: ActivationListeners,
    bans: BanList,
    pub(crate) penalties: Arc<Penalties>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) waits: Arc<WaitRoom>,
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
            waits: Arc::default(),
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
        self.store().override_limit(key, replacement, now).await?;
        self.waits.hasten(key, self.shared.clock.now());
        Ok(())
    }

    /// The clients that are locked out, and those with recorded violations.
    pub fn penalties(&self) -> &Arc<Penalties> {
        &self.penalties
    }

    /// The requests that wait or are delayed.
    pub fn waits(&self) -> &Arc<WaitRoom> {
        &self.waits
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
            self.match_request(policy, facts, scratch, context.now)
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
        self.try_decide(policy, context, self.match_request(policy, facts, scratch, context.now))
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
            self.match_request(policy, facts, scratch, context.now)
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
        let matched = self.match_rule(policy, check, scratch, context.now)?;
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
        Ok(self.try_decide(policy, context, self.match_rule(policy, check, scratch, context.now)?))
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
        let matched = self.match_rule(policy, check, scratch, context.now)?;
        Ok(self.decide(policy, context, Charging::Off, move || matched).await)
    }

    /// The checks of a request, unless its client is banned or exempt.
    pub(crate) fn match_request<'a>(
        &self,
        policy: &'a ActivePolicy,
        facts: &Facts<'_>,
        scratch: &'a mut Scratch,
        now: Timestamp,
    ) -> Result<MatchedRequest<'a>, SkipReason> {
        let bans = self.bans.any();
        let bans = bans.as_deref().map(|bans| &**bans);
        let runtime = RuntimeData { directory: policy.directory.as_deref(), bans };
        match policy.matcher.admit(facts, runtime, now, scratch) {
            Admission::Banned { by } => Err(SkipReason::excluded(by)),
            Admission::Exempt { why } => Err(SkipReason::Exempt(why)),
            Admission::Checked(matched) => Ok(matched),
        }
    }

    /// The check of a rule, unless its client is banned or exempt.
    fn match_rule<'a>(
        &self,
        policy: &'a ActivePolicy,
        RuleCheck { rule, client, cost }: RuleCheck<'_>,
        scratch: &'a mut Scratch,
        now: Timestamp,
    ) -> Result<Result<MatchedRequest<'a>, SkipReason>, UnknownRule> {
        let matched = policy.matcher.match_rule(rule, client.key(), cost, scratch).ok_or(UnknownRule)?;
        let bans = self.bans.any();
        let bans = bans.as_deref().map(|bans| &**bans);
        let runtime = RuntimeData { directory: policy.directory.as_deref(), bans };
        Ok(match policy.matcher.exclusion(client, runtime, now) {
            None => Ok(matched),
            Some(Exclusion::Banned(by)) => Err(SkipReason::excluded(by)),
            Some(Exclusion::Exempt(why)) => Err(SkipReason::Exempt(why)),
        })
    }
}

/// The checks that were found, with the actions that the interface performs. They stay where they are: a matched request is large.
#[inline]
pub(crate) fn with_actions<'m, 'a>(
    policy: &ActivePolicy,
    found: &'m mut Result<MatchedRequest<'a>, SkipReason>,
    performs: ActionSet,
) -> Result<&'m MatchedRequest<'a>, SkipReason> {
    let matched = found.as_mut().map_err(|reason| *reason)?;
    if policy.matcher.has_actions() {
        matched.perform(performs);
    }
    Ok(matched)
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
