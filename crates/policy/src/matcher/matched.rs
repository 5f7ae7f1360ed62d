//! The result of matching: the checks of a request.

use http::HeaderMap;
use http::header::HeaderName;
use ipnet::IpNet;
use smallvec::SmallVec;
use tidegate_core::{
    ActionSet, Check, Cost, CounterKey, Decision, LimitReport, Outcome, Penalty, Role, Timestamp,
};

use crate::bans::{Ban, Bans};
use crate::directory::Directory;
use crate::identity::NotLockedOut;
use crate::matcher::condition;
use crate::path::Readings;
use crate::plan::{
    ChargeBasis, ConcurrencyRule, CounterScope, ExceedAction, Plan, Rule, RuleCost, StatusSet,
};

/// The number of checks stored without an allocation: the four built-in limits and four more.
const INLINE: usize = 8;

/// Reusable buffers for matching, one per thread or connection. Once they have grown to the size that requests need,
/// matching does not allocate.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The client parts of all keys, concatenated.
    pub(super) bytes: Vec<u8>,
    /// Indexes of the rules whose path matches.
    pub(super) found: Vec<u32>,
    pub(super) applied: Vec<AppliedRule>,
    pub(super) readings: Readings,
}

/// A range of [`Scratch::bytes`]: start and end.
pub(super) type ByteRange = (u32, u32);

/// A rule that applies to a request, and the client it counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct AppliedRule {
    pub(super) rule_ref: RuleRef,
    pub(super) client: ByteRange,
    pub(super) cost: Cost,
    /// The condition could not be evaluated.
    pub(super) condition_failed: bool,
    /// The cost is unknown until the request body has been read.
    pub(super) cost_is_unknown: bool,
}

impl AppliedRule {
    /// What sets the final cost later; `None` if nothing does.
    fn settlement(&self, plan: &Plan) -> Option<Settlement> {
        let RuleRef::Custom(at) = self.rule_ref else { return None };
        let custom = plan.rate_limits.rules.get(at)?;
        match (&custom.charge, &custom.cost) {
            (ChargeBasis::Status(statuses), _) => Some(Settlement::Status(Box::new(*statuses))),
            (ChargeBasis::Header(name), _) => Some(Settlement::Header(name.clone())),
            (ChargeBasis::UpFront, RuleCost::Body(unit)) if self.cost_is_unknown => {
                Some(Settlement::Body(*unit))
            }
            (ChargeBasis::UpFront, _) => None,
        }
    }
}

/// The location of a rule in a plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum RuleRef {
    Global,
    Tenant,
    Default,
    Tier(usize),
    Custom(usize),
    Endpoint(usize),
    /// A concurrency rule, which has no counter.
    ConcurrencyCheck(usize),
}

impl RuleRef {
    fn rule(self, plan: &Plan) -> Option<&Rule> {
        let limits = &plan.rate_limits;
        match self {
            Self::Global => limits.global.as_ref(),
            Self::Tenant => limits.tenant.as_ref(),
            Self::Default => limits.default.as_ref(),
            Self::Tier(at) => limits.tiers.get(at).and_then(|tier| tier.rule.as_ref()),
            Self::Custom(at) => limits.rules.get(at).map(|custom| &custom.rule),
            Self::Endpoint(at) => limits.endpoints.get(at).map(|endpoint| &endpoint.rule),
            Self::ConcurrencyCheck(_) => None,
        }
    }

    /// Every rule with a counter, and its location.
    pub(super) fn all(plan: &Plan) -> impl Iterator<Item = (&Rule, Self)> {
        let limits = &plan.rate_limits;
        let all = [Self::Global, Self::Tenant, Self::Default].into_iter();
        let all = all.chain((0..limits.tiers.len()).map(Self::Tier));
        let all = all.chain((0..limits.rules.len()).map(Self::Custom));
        let all = all.chain((0..limits.endpoints.len()).map(Self::Endpoint));
        all.filter_map(|rule_ref| Some((rule_ref.rule(plan)?, rule_ref)))
    }

    /// Whether all clients share one counter.
    pub(super) fn counts_everybody(self, plan: &Plan) -> bool {
        match self {
            Self::Global => true,
            Self::Custom(at) => {
                plan.rate_limits.rules.get(at).is_some_and(|custom| custom.count == CounterScope::Everybody)
            }
            _ => false,
        }
    }
}

/// The result of matching, before any counter is read.
#[expect(clippy::large_enum_variant, reason = "nearly every request is the large one")]
#[derive(Debug)]
pub enum Admission<'a, 'k> {
    /// The request is admitted without limits; it is only counted in metrics.
    Exempt {
        /// Why.
        why: Exemption,
    },
    /// The request is rejected with 403.
    Banned {
        /// The origin of the ban.
        by: BanSource<'k>,
    },
    /// The request is admitted if one decision admits all its checks.
    Checked(MatchedRequest<'a>),
}

/// The origin of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanSource<'a> {
    /// The policy bans this network.
    Policy(IpNet),
    /// The policy serves only some networks, and the client's address is in none of them.
    NotAllowed,
    /// An operator has banned the client or its network at run time.
    Operator(&'a Ban),
}

/// Data that changes independently of the policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeData<'a> {
    /// The directory of API keys that belongs to the plan.
    pub directory: Option<&'a Directory>,
    /// The bans that operators have set.
    pub bans: Option<&'a Bans>,
}

impl<'a> From<Option<&'a Directory>> for RuntimeData<'a> {
    fn from(directory: Option<&'a Directory>) -> Self {
        Self { directory, bans: None }
    }
}

/// Why a request is exempt from limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exemption {
    /// The client's address is in this network.
    Network(IpNet),
    /// The API key is listed as exempt.
    ApiKey,
}

/// The rules that apply to a request, in the order of the policy. Cheap to copy: it borrows from [`Scratch`].
#[derive(Clone, Copy, Debug)]
pub struct AppliedRules<'a> {
    applied: &'a [AppliedRule],
    concurrency_checks: &'a [AppliedRule],
    bytes: &'a [u8],
    plan: &'a Plan,
    client: &'a [u8],
}

impl<'a> AppliedRules<'a> {
    fn new(plan: &'a Plan, scratch: &'a Scratch, checks: usize, client: ByteRange) -> Self {
        let (applied, concurrency_checks) = scratch.applied.split_at_checked(checks).unwrap_or_default();
        let mut rules = Self { applied, concurrency_checks, bytes: &scratch.bytes, plan, client: &[] };
        rules.client = rules.bytes(client);
        rules
    }

    /// No rules: the request is not checked, and its client is not looked up.
    pub fn none(plan: &'a Plan) -> Self {
        Self { applied: &[], concurrency_checks: &[], bytes: &[], plan, client: &[] }
    }

    fn bytes(&self, (start, end): ByteRange) -> &'a [u8] {
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    /// The rule of check number `index`.
    pub fn rule(&self, index: usize) -> Option<&'a Rule> {
        self.applied.get(index).and_then(|applied| applied.rule_ref.rule(self.plan))
    }

    /// Whether the user of check number `index` is one that a body names.
    fn counts_body_user(&self, index: usize) -> bool {
        let Some(RuleRef::Custom(at)) = self.applied.get(index).map(|applied| applied.rule_ref) else {
            return false;
        };
        self.plan.rate_limits.rules.get(at).is_some_and(|custom| custom.body_user.is_some())
    }

    /// The rules, one for each check, with the role of the check.
    pub fn rules(&self) -> impl Iterator<Item = (&'a Rule, Role)> + use<'a> {
        let Self { plan, client, .. } = *self;
        let rules = self.applied.iter().filter_map(move |applied| applied.rule_ref.rule(plan));
        rules.map(move |rule| (rule, rule.mode.role(rule.id, client)))
    }

    /// The checks.
    pub fn checks(&self) -> impl Iterator<Item = Check<'a>> {
        self.applied.iter().filter_map(|applied| {
            let rule = applied.rule_ref.rule(self.plan)?;
            let key = CounterKey::new(rule.id, self.bytes(applied.client));
            let check = Check::new(key, &rule.limit).cost(applied.cost);
            Some(check.role(rule.mode.role(rule.id, self.client)))
        })
    }

    /// The checks that `decision` charged.
    pub fn charged(&self, decision: &Decision) -> impl Iterator<Item = ChargedCheck<'a>> {
        self.checks().zip(self.applied).enumerate().filter_map(|(position, (check, applied))| {
            let charged = decision.charged_at(position, &check)?;
            Some(ChargedCheck { check, charged, settlement: applied.settlement(self.plan) })
        })
    }

    /// The counter key of the client. It may contain an API key.
    pub fn client(&self) -> &'a [u8] {
        self.client
    }
}

/// The checks of a request, in the order of the policy, and the rules they come from.
#[derive(Clone, Debug)]
pub struct MatchedRequest<'a> {
    checks: SmallVec<[Check<'a>; INLINE]>,
    rules: AppliedRules<'a>,
    not_locked_out: NotLockedOut,
    performed: ActionSet,
}

impl<'a> MatchedRequest<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        scratch: &'a Scratch,
        checks: usize,
        client: ByteRange,
        not_locked_out: NotLockedOut,
    ) -> Self {
        let rules = AppliedRules::new(plan, scratch, checks, client);
        Self { checks: rules.checks().collect(), rules, not_locked_out, performed: ActionSet::NONE }
    }

    /// The checks, to be decided together.
    pub fn checks(&self) -> &[Check<'a>] {
        &self.checks
    }

    /// Sets which actions take the place of rejections, because the interface can perform them.
    pub fn perform(&mut self, actions: ActionSet) {
        self.performed = actions;
        for (check, applied) in self.checks.iter_mut().zip(self.rules.applied) {
            let kind = applied.rule_ref.rule(self.rules.plan).map(|rule| rule.on_exceed.kind());
            if check.role == Role::Binding && kind.is_some_and(|kind| kind.admits() && actions.contains(kind))
            {
                check.role = Role::Action;
            }
        }
    }

    /// Undoes [`perform`](Self::perform): every enforced check rejects.
    pub fn reject(&mut self) {
        self.performed = ActionSet::NONE;
        for check in self.checks.iter_mut().filter(|check| check.role == Role::Action) {
            check.role = Role::Binding;
        }
    }

    /// The decision with the same outcomes and the present roles of the checks.
    pub fn rebind(&self, decision: Decision) -> Decision {
        Decision::new(decision.at, &self.checks, decision.outcomes)
    }

    /// The actions that take the place of rejections.
    pub fn performed(&self) -> ActionSet {
        self.performed
    }

    /// What happens if check number `index` does not fit.
    pub fn on_exceed(&self, index: usize) -> Option<&'a ExceedAction> {
        self.rules.rule(index).map(|rule| &rule.on_exceed)
    }

    /// The penalty for violations of check number `index`; `None` if a lock-out could affect other clients.
    pub fn penalty(&self, index: usize) -> Option<&'a Penalty> {
        self.penalty_without(index, NotLockedOut::default())
    }

    /// The same for a violation by this request: a token that is not valid now causes no penalty, as somebody else may have
    /// found it.
    pub fn caused_penalty(&self, index: usize) -> Option<&'a Penalty> {
        self.penalty_without(index, self.not_locked_out)
    }

    fn penalty_without(&self, index: usize, not_locked_out: NotLockedOut) -> Option<&'a Penalty> {
        let penalty = self.rules.rule(index)?.penalty.as_ref()?;
        let key = self.checks.get(index)?.key;
        let not_locked_out =
            if self.rules.counts_body_user(index) { not_locked_out.with_user() } else { not_locked_out };
        self.rules.plan.clients.may_lock_out_counter(key.client, not_locked_out).then_some(penalty)
    }

    /// The rules that apply. They can outlive this value.
    pub fn applied(&self) -> AppliedRules<'a> {
        self.rules
    }

    /// When check number `index` is charged, if not up front.
    pub(crate) fn charge(&self, index: usize) -> Option<&'a ChargeBasis> {
        let RuleRef::Custom(at) = self.rules.applied.get(index)?.rule_ref else { return None };
        let custom = self.rules.plan.rate_limits.rules.get(at)?;
        Some(&custom.charge).filter(|charge| **charge != ChargeBasis::UpFront)
    }

    /// The rules, one for each check.
    pub fn rules(&self) -> impl Iterator<Item = &'a Rule> {
        self.rules.applied.iter().filter_map(|applied| applied.rule_ref.rule(self.rules.plan))
    }

    /// The concurrency checks of the request, in the order of the policy.
    pub fn concurrency_checks(&self) -> impl Iterator<Item = ConcurrencyCheck<'a>> {
        self.rules.concurrency_checks.iter().filter_map(|applied| {
            let RuleRef::ConcurrencyCheck(at) = applied.rule_ref else { return None };
            let rule = self.rules.plan.rate_limits.concurrent.get(at)?;
            let key = CounterKey::new(rule.id, self.rules.bytes(applied.client));
            let condition_failed = applied.condition_failed;
            Some(ConcurrencyCheck {
                rule,
                key,
                role: rule.mode.role(rule.id, self.rules.client),
                condition_failed,
            })
        })
    }

    /// Every check with its rule and its outcome in `decision`, in order.
    ///
    /// A check with [`Role::Advisory`] belongs to a rule in shadow mode or to a client outside the rule's canary. Its
    /// outcome is reported to operators, not to the client.
    ///
    /// ```
    /// # use http::HeaderMap;
    /// # use tidegate_core::{Outcomes, Timestamp};
    /// # use tidegate_policy::{Admission, Facts, Matcher, NoFiles, Scratch, compile};
    /// # let policy = b"rate_limits: { default: { requests: 5, window: 60, mode: shadow } }";
    /// # let matcher = Matcher::new(compile("policy.yaml", policy, &NoFiles)?.plan);
    /// # let headers = HeaderMap::new();
    /// # let facts = Facts { method: "GET", host: Some(""), path: "/", headers: &headers, peer: [192, 0, 2, 1].into(), body: tidegate_policy::BodyFacts::Unknown };
    /// # let mut scratch = Scratch::default();
    /// # let now = Timestamp::ZERO;
    /// # let Admission::Checked(matched) = matcher.admit(&facts, None, now, &mut scratch) else { panic!() };
    /// # let check = matched.checks()[0];
    /// # let outcome = check.limit.evaluate(&Default::default(), now, tidegate_core::Cost::new(6));
    /// # let decision = tidegate_core::Decision::new(now, matched.checks(), Outcomes::from_slice(&[outcome]));
    /// assert!(decision.passes());
    /// let would_reject: Vec<_> =
    ///     matched.check_results(&decision).filter(|result| result.would_reject()).map(|result| &result.rule.name).collect();
    /// assert_eq!(would_reject, ["default"]);
    /// # Ok::<(), tidegate_policy::Problems>(())
    /// ```
    pub fn check_results<'d>(&'d self, decision: &'d Decision) -> impl Iterator<Item = CheckResult<'d>> {
        let checks = self.checks.iter().zip(self.rules()).zip(&decision.outcomes);
        checks.map(|((check, rule), outcome)| CheckResult { rule, check, outcome })
    }

    /// Whether any check is of an enforced rule, so that it may have to reject the request.
    pub fn has_enforced_check(&self) -> bool {
        self.checks.iter().any(|check| check.role.is_enforced())
    }

    /// The counter key of the client. It may contain an API key.
    pub fn client(&self) -> &'a [u8] {
        self.rules.client
    }

    /// Rules that apply only because their condition could not be evaluated.
    pub fn failed_conditions(&self) -> impl Iterator<Item = &'a Rule> {
        let failed = self.rules.applied.iter().filter(|applied| applied.condition_failed);
        failed.filter_map(|applied| applied.rule_ref.rule(self.rules.plan))
    }

    /// The index of the check that single-valued headers report: the one that rejects the request, or of those that clients are
    /// told about the one with the smallest remaining fraction of its limit. Ties go to the first. `None` if there is no binding
    /// check.
    pub fn tightest(&self, decision: &Decision) -> Option<usize> {
        if decision.rejected_by.is_some() {
            return decision.rejected_by;
        }
        let outcomes = self.checks.iter().zip(&decision.outcomes).enumerate();
        let binding = outcomes.filter(|(_, (check, _))| check.role.is_enforced());
        // Compares a/b with c/d by cross-multiplication; the products fit 128 bits.
        let product = |remaining: u64, limit: u64| u128::from(remaining) * u128::from(limit);
        let is_hidden = |index: usize| self.rules.rule(index).is_some_and(|rule| !rule.is_reported);
        let least = binding.min_by(|(first, (_, one)), (second, (_, other))| {
            let order = product(one.remaining, other.limit).cmp(&product(other.remaining, one.limit));
            is_hidden(*first).cmp(&is_hidden(*second)).then(order)
        });
        least.map(|(index, _)| index)
    }
}

/// A check that was charged.
#[derive(Clone, Debug)]
pub struct ChargedCheck<'a> {
    /// The check: counter and cost.
    pub check: Check<'a>,
    /// The time of the charge: when the request is forwarded.
    pub charged: Timestamp,
    /// What sets its final cost; `None` if it stays as it is.
    pub settlement: Option<Settlement>,
}

/// What sets the final cost of a check that was charged up front.
#[derive(Clone, Debug)]
pub enum Settlement {
    /// Kept if the response has one of these statuses, refunded if not.
    Status(Box<StatusSet>),
    /// Replaced by the cost in this response header.
    Header(HeaderName),
    /// Replaced by one unit for each started block of this many bytes of the request body.
    Body(u64),
}

impl Settlement {
    /// The final cost of a check of cost `reserved` after a response; `None` if the response does not settle it, so that it
    /// is kept.
    pub fn by_response(&self, reserved: Cost, status: u16, headers: &HeaderMap) -> Option<Cost> {
        match self {
            Self::Status(statuses) => Some(if statuses.contains(status) { reserved } else { Cost::ZERO }),
            Self::Header(name) => condition::reported_cost(headers, name),
            Self::Body(_) => None,
        }
    }

    /// The cost of a request body of `bytes` bytes; `None` if the body does not settle the check.
    pub fn by_body(&self, bytes: u64) -> Option<Cost> {
        match self {
            Self::Body(unit) => Some(Cost::new(condition::body_units(bytes, *unit))),
            Self::Status(_) | Self::Header(_) => None,
        }
    }
}

/// A check of a concurrency rule: the request needs a permit while it is in progress.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyCheck<'a> {
    /// The rule.
    pub rule: &'a ConcurrencyRule,
    /// The key that requests are counted under.
    pub key: CounterKey<'a>,
    /// Whether the request is rejected if the limit is reached.
    pub role: Role,
    /// Whether the rule applies only because its condition could not be evaluated.
    pub condition_failed: bool,
}

/// A check, its rule and its outcome.
#[derive(Clone, Copy, Debug)]
pub struct CheckResult<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// The check: counter, cost and role.
    pub check: &'a Check<'a>,
    /// The outcome.
    pub outcome: &'a Outcome,
}

impl<'a> CheckResult<'a> {
    /// What responses report about the rule's limit.
    #[inline]
    pub fn report(&self) -> LimitReport<'a> {
        self.rule.quota.report(&self.rule.name, self.outcome)
    }

    /// Whether the rule rejected the request, alone or with others.
    pub fn rejects(&self) -> bool {
        self.check.role == Role::Binding && !self.outcome.verdict.is_pass()
    }

    /// Whether the rule is advisory and would have rejected the request if it were enforced.
    pub fn would_reject(&self) -> bool {
        self.check.role == Role::Advisory && !self.outcome.verdict.is_pass()
    }
}
