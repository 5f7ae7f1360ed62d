//! What a request is held against.

use http::HeaderMap;
use http::header::HeaderName;
use ipnet::IpNet;
use smallvec::SmallVec;
use tidegate_core::{Check, Cost, Decision, Key, LimitReport, Outcome, Role, Timestamp, Verdict};

use crate::bans::{Ban, Bans};
use crate::directory::Directory;
use crate::matcher::condition;
use crate::path::Readings;
use crate::plan::{Charge, ConcurrencyRule, CounterScope, Plan, Rule, RuleCost, StatusSet};

/// Checks that need no allocation: the limits with a place of their own, and four more.
const INLINE: usize = 8;

/// Where a match is worked out. One for each thread or connection, used again and again: once it has grown to what
/// requests need, matching takes nothing from the heap.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The clients of all keys, one after another.
    pub(super) bytes: Vec<u8>,
    /// Rules whose path fits.
    pub(super) found: Vec<u32>,
    pub(super) applied: Vec<AppliedRule>,
    pub(super) readings: Readings,
}

/// A part of [`Scratch::bytes`].
pub(super) type ByteRange = (u32, u32);

/// A rule that applies, and whom it counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct AppliedRule {
    pub(super) rule_ref: RuleRef,
    pub(super) client: ByteRange,
    pub(super) cost: Cost,
    /// Its condition could not be evaluated.
    pub(super) condition_failed: bool,
    /// What it costs is not known before its body has come.
    pub(super) cost_is_unknown: bool,
}

/// Where a rule stands in a plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum RuleRef {
    Global,
    Tenant,
    Default,
    Tier(usize),
    Custom(usize),
    Endpoint(usize),
    /// A rule of how many at once, which has no counter.
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

    /// Every rule with a counter, and where it stands.
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

/// What becomes of a request before any counter is asked.
#[expect(clippy::large_enum_variant, reason = "nearly every request is the large one")]
#[derive(Debug)]
pub enum Admission<'a, 'k> {
    /// It passes, whatever it costs; it is only counted.
    Exempt {
        /// Why.
        why: Exemption,
    },
    /// It is refused with 403.
    Banned {
        /// By whom.
        by: BanSource<'k>,
    },
    /// It passes if all its checks do, in one decision.
    Checked(MatchedRequest<'a>),
}

/// What a request is refused for with 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanSource<'a> {
    /// The policy bans this network.
    Policy(IpNet),
    /// An operator has banned its client or its network while the policy was in force.
    Operator(&'a Ban),
}

/// What is known pending_cost the policy, and changes without it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeData<'a> {
    /// Whose API key is whose: the directory that goes with the plan.
    pub directory: Option<&'a Directory>,
    /// Whom operators have banned.
    pub bans: Option<&'a Bans>,
}

impl<'a> From<Option<&'a Directory>> for RuntimeData<'a> {
    fn from(directory: Option<&'a Directory>) -> Self {
        Self { directory, bans: None }
    }
}

/// Why a request is never limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exemption {
    /// Its address lies in this network.
    Network(IpNet),
    /// Its API key is on the list.
    ApiKey,
}

/// The rules that apply to a request, in the order of the policy. It is small: it borrows what was worked out.
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

    fn bytes(&self, (start, end): ByteRange) -> &'a [u8] {
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    /// The rule that check number `index` comes from: its name, its limit in words, its window.
    pub fn rule(&self, index: usize) -> Option<&'a Rule> {
        self.applied.get(index).and_then(|applied| applied.rule_ref.rule(self.plan))
    }

    /// The rules, one for each check, with what the check can do.
    pub fn rules(&self) -> impl Iterator<Item = (&'a Rule, Role)> + use<'a> {
        let Self { plan, client, .. } = *self;
        let rules = self.applied.iter().filter_map(move |applied| applied.rule_ref.rule(plan));
        rules.map(move |rule| (rule, rule.mode.role(rule.id, client)))
    }

    /// The checks.
    pub fn checks(&self) -> impl Iterator<Item = Check<'a>> {
        self.applied.iter().filter_map(|applied| {
            let rule = applied.rule_ref.rule(self.plan)?;
            let key = Key::new(rule.id, self.bytes(applied.client));
            let check = Check::new(key, &rule.limit).cost(applied.cost);
            Some(check.role(rule.mode.role(rule.id, self.client)))
        })
    }

    /// The bytes that counters of the client have; they may hold an API key.
    pub fn client(&self) -> &'a [u8] {
        self.client
    }
}

/// The checks of a request, in the order of the policy, and the rules they come from.
#[derive(Debug)]
pub struct MatchedRequest<'a> {
    checks: SmallVec<[Check<'a>; INLINE]>,
    rules: AppliedRules<'a>,
}

impl<'a> MatchedRequest<'a> {
    pub(super) fn new(plan: &'a Plan, scratch: &'a Scratch, checks: usize, client: ByteRange) -> Self {
        let rules = AppliedRules::new(plan, scratch, checks, client);
        Self { checks: rules.checks().collect(), rules }
    }

    /// The checks: one decision.
    pub fn checks(&self) -> &[Check<'a>] {
        &self.checks
    }

    /// The rules that apply. They outlive the match.
    pub fn applied(&self) -> AppliedRules<'a> {
        self.rules
    }

    /// When check number `index` is charged, where that is not up front.
    pub(crate) fn charge(&self, index: usize) -> Option<&'a Charge> {
        let RuleRef::Custom(at) = self.rules.applied.get(index)?.rule_ref else { return None };
        let custom = self.rules.plan.rate_limits.rules.get(at)?;
        Some(&custom.charge).filter(|charge| **charge != Charge::UpFront)
    }

    /// The rules, one for each check.
    pub fn rules(&self) -> impl Iterator<Item = &'a Rule> {
        self.rules.applied.iter().filter_map(|applied| applied.rule_ref.rule(self.rules.plan))
    }

    /// Places among the requests under way that the request needs pending_cost its checks, in the order of the policy.
    pub fn concurrency_checks(&self) -> impl Iterator<Item = ConcurrencyCheck<'a>> {
        self.rules.concurrency_checks.iter().filter_map(|applied| {
            let RuleRef::ConcurrencyCheck(at) = applied.rule_ref else { return None };
            let rule = self.rules.plan.rate_limits.concurrent.get(at)?;
            let key = Key::new(rule.id, self.rules.bytes(applied.client));
            let condition_failed = applied.condition_failed;
            Some(ConcurrencyCheck {
                rule,
                key,
                role: rule.mode.role(rule.id, self.rules.client),
                condition_failed,
            })
        })
    }

    /// Every check with its rule and what `decision` answered to it, in order.
    ///
    /// A check whose role is [`Role::Advisory`] belongs to a rule in shadow, or to a client outside its canary: its
    /// outcome must not reach the client, but operators want to see it.
    ///
    /// ```
    /// # use http::HeaderMap;
    /// # use tidegate_core::{Outcomes, Timestamp};
    /// # use tidegate_policy::{Admission, Facts, Matcher, NoFiles, Scratch, compile};
    /// # let policy = b"rate_limits: { default: { requests: 5, window: 60, mode: shadow } }";
    /// # let matcher = Matcher::new(compile("policy.yaml", policy, &NoFiles)?.plan);
    /// # let headers = HeaderMap::new();
    /// # let facts = Facts { method: "GET", host: "", path: "/", headers: &headers, peer: [192, 0, 2, 1].into() };
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

    /// What `decision` has charged and is yet to be settled: by the response, or by the body of the request.
    pub fn reservations<'d>(&'d self, decision: &'d Decision) -> impl Iterator<Item = Reservation<'d>> {
        let results = self.check_results(decision).zip(self.rules.applied).filter(|_| decision.passes());
        results.filter_map(|(result, applied)| {
            let RuleRef::Custom(at) = applied.rule_ref else { return None };
            let Verdict::Pass { wait } = result.outcome.verdict else { return None };
            let custom = self.rules.plan.rate_limits.rules.get(at)?;
            let settlement = match (&custom.charge, &custom.cost) {
                (Charge::Status(statuses), _) => Settlement::Status(statuses),
                (Charge::Header(name), _) => Settlement::Header(name),
                (Charge::UpFront, RuleCost::Body(unit)) if applied.cost_is_unknown => Settlement::Body(*unit),
                (Charge::UpFront, _) => return None,
            };
            Some(Reservation { check: result.check, charged: decision.at + wait, settlement })
        })
    }

    /// Whether there is a check that can refuse the request; the others only watch.
    pub fn has_binding_check(&self) -> bool {
        self.checks.iter().any(|check| check.role == Role::Binding)
    }

    /// The bytes that counters of the client have; they may hold an API key.
    pub fn client(&self) -> &'a [u8] {
        self.rules.client
    }

    /// Rules that apply only because their condition could not be evaluated; to be counted, and looked into.
    pub fn failed_conditions(&self) -> impl Iterator<Item = &'a Rule> {
        let failed = self.rules.applied.iter().filter(|applied| applied.condition_failed);
        failed.filter_map(|applied| applied.rule_ref.rule(self.rules.plan))
    }

    /// Which check single-valued headers speak of: the one that refuses, as the body names it, or that with the least
    /// remaining of its limit; the first of equals. None if there is no check.
    pub fn tightest(&self, decision: &Decision) -> Option<usize> {
        if decision.rejected_by.is_some() {
            return decision.rejected_by;
        }
        let outcomes = self.checks.iter().zip(&decision.outcomes).enumerate();
        let binding = outcomes.filter(|(_, (check, _))| check.role == Role::Binding);
        // a/b < c/d without a fraction; what two 64-bit numbers multiply to fits.
        let product = |remaining: u64, limit: u64| u128::from(remaining) * u128::from(limit);
        let least = binding.min_by(|(_, (_, one)), (_, (_, other))| {
            product(one.remaining, other.limit).cmp(&product(other.remaining, one.limit))
        });
        least.map(|(index, _)| index)
    }
}

/// Units that were charged up front and are yet to be settled.
#[derive(Clone, Copy, Debug)]
pub struct Reservation<'a> {
    /// What was charged: whose counter, how much.
    pub check: &'a Check<'a>,
    /// When the request was to pass.
    pub charged: Timestamp,
    /// What settles it.
    pub settlement: Settlement<'a>,
}

/// What settles a reservation.
#[derive(Clone, Copy, Debug)]
pub enum Settlement<'a> {
    /// It stands if the response has one of these statuses, and is given back if not.
    Status(&'a StatusSet),
    /// This response header says what the request has cost.
    Header(&'a HeaderName),
    /// A unit for each so many bytes of the request's body.
    Body(u64),
}

impl Settlement<'_> {
    /// What a response makes of a reservation of `reserved`; `None` if the response does not settle it, so that it
    /// stands.
    pub fn by_response(&self, reserved: Cost, status: u16, headers: &HeaderMap) -> Option<Cost> {
        match self {
            Self::Status(statuses) => Some(if statuses.contains(status) { reserved } else { Cost::ZERO }),
            Self::Header(name) => condition::reported_cost(headers, name),
            Self::Body(_) => None,
        }
    }

    /// What a request's body of so many bytes costs; `None` if the body does not settle it.
    pub fn by_body(&self, bytes: u64) -> Option<Cost> {
        match self {
            Self::Body(unit) => Some(Cost::new(condition::body_units(bytes, *unit))),
            Self::Status(_) | Self::Header(_) => None,
        }
    }
}

/// A place among the requests under way that a rule wants a request to take.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyCheck<'a> {
    /// The rule.
    pub rule: &'a ConcurrencyRule,
    /// Whose requests are counted.
    pub key: Key<'a>,
    /// Whether the request is refused if there is no place.
    pub role: Role,
    /// Whether the rule applies only because its condition could not be evaluated.
    pub condition_failed: bool,
}

/// A check, the rule it comes from and the answer to it.
#[derive(Clone, Copy, Debug)]
pub struct CheckResult<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// What was asked: whose counter, at what cost, in which role.
    pub check: &'a Check<'a>,
    /// What was answered.
    pub outcome: &'a Outcome,
}

impl<'a> CheckResult<'a> {
    /// What responses report about the rule's limit.
    #[inline]
    pub fn report(&self) -> LimitReport<'a> {
        self.rule.quota.report(&self.rule.name, self.outcome)
    }

    /// Whether the rule refused the request, alone or with others.
    pub fn rejects(&self) -> bool {
        self.check.role == Role::Binding && !self.outcome.verdict.is_pass()
    }

    /// Whether the rule only watches, and would have refused the request if it were enforced.
    pub fn would_reject(&self) -> bool {
        self.check.role == Role::Advisory && !self.outcome.verdict.is_pass()
    }
}
