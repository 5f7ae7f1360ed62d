//! The limits of a policy.

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use http::header::HeaderName;
use tidegate_core::{Algorithm, Coordination, Cost, LeakyBucket, Limit, Penalty, RuleId, TimeSpan};

use crate::endpoints::EndpointPattern;
use crate::expression::Expression;
use crate::identity::ClientKind;
use crate::plan::{ChargeBasis, ExceedAction, Mode, Quota, RejectionPlan, RuleCost, RuleSharing};
use crate::units::span_text;

/// All limits, in the order in which they are checked.
#[derive(Clone, Debug, Default)]
pub struct RateLimits {
    /// All clients together.
    pub global: Option<Rule>,
    /// Each tenant.
    pub tenant: Option<Rule>,
    /// Each client without a tier.
    pub default: Option<Rule>,
    /// Each client of a tier, instead of `default`.
    pub tiers: Vec<Tier>,
    /// Custom rules.
    pub rules: Vec<CustomRule>,
    /// Each client at an endpoint; the most specific pattern applies.
    pub endpoints: Vec<EndpointRule>,
    /// Concurrency rules.
    pub concurrent: Vec<ConcurrencyRule>,
}

impl RateLimits {
    /// Every rate rule, in the order in which they are checked. Unlimited tiers have none.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        let single = [&self.global, &self.tenant, &self.default].into_iter().flatten();
        let tiers = self.tiers.iter().filter_map(|tier| tier.rule.as_ref());
        let rules = self.rules.iter().map(|custom| &custom.rule);
        single.chain(tiers).chain(rules).chain(self.endpoints.iter().map(|endpoint| &endpoint.rule))
    }
}

/// A limit with a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rule {
    /// The name: `global`, `tenant`, `default`, `tier:NAME`, `endpoint:PATH`, or that of a custom rule.
    pub name: String,
    /// The id in the keys of its counters.
    pub id: RuleId,
    /// The limit.
    pub limit: Limit,
    /// Units per window, as in the policy.
    pub requests: u64,
    /// The window, as in the policy.
    pub window: TimeSpan,
    /// The burst, if the policy sets it.
    pub burst: Option<u64>,
    /// The longest wait, if the policy sets it.
    pub max_wait: Option<TimeSpan>,
    /// The limit as it is announced to clients.
    pub quota: Quota,
    /// Whether it is enforced.
    pub mode: Mode,
    /// Whether clients are told about it.
    pub is_reported: bool,
    /// The lock-out for clients that are rejected repeatedly.
    pub penalty: Option<Penalty>,
    /// What happens to a request that exceeds it.
    pub on_exceed: ExceedAction,
    /// The response to a request that it rejects; `None` is the usual one.
    pub rejection: Option<Box<RejectionPlan>>,
    /// How nodes share its counters; `None` if each process counts for itself.
    pub sharing: Option<RuleSharing>,
    /// The line in the policy.
    pub line: u32,
}

impl Rule {
    /// The algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.limit.algorithm()
    }

    /// Whether it rejects requests of any client. One that degrades them does so only where the action cannot be performed.
    pub fn can_reject(&self) -> bool {
        self.mode.can_reject() && !self.on_exceed.kind().admits()
    }

    /// The units that it lends beyond its burst.
    pub fn lent(&self) -> u64 {
        match self.on_exceed {
            ExceedAction::Borrow(borrow) => borrow.units,
            _ => 0,
        }
    }

    /// The longest time that a request is delayed: as in the policy, or the algorithm's default.
    pub fn longest_wait(&self) -> TimeSpan {
        match self.algorithm() {
            Algorithm::LeakyBucket => self.max_wait.unwrap_or(LeakyBucket::DEFAULT_MAX_WAIT),
            _ => TimeSpan::ZERO,
        }
    }

    /// Describes the limit: `100 per 1m, token_bucket, burst 20`.
    pub fn describe(&self) -> String {
        let burst = self.burst.map(|burst| format!(", burst {burst}")).unwrap_or_default();
        let max_wait =
            self.max_wait.map(|wait| format!(", max_wait {}", span_text(wait))).unwrap_or_default();
        format!("{} per {}, {}{burst}{max_wait}", self.requests, span_text(self.window), self.algorithm())
    }

    /// Describes the limit and all other settings that are not the default: `…, shadow`.
    pub fn describe_all(&self) -> String {
        let mut text = self.describe();
        if self.mode != Mode::Enforce {
            // Writing to a `String` cannot fail.
            let _ = write!(text, ", {}", self.mode);
        }
        if !self.is_reported {
            text.push_str(", not reported");
        }
        if self.on_exceed != ExceedAction::Reject {
            let _ = write!(text, ", {}", self.on_exceed);
        }
        if let Some(rejection) = &self.rejection {
            let _ = write!(text, ", {rejection}");
        }
        if let Some(penalty) = self.penalty {
            let _ = write!(text, ", {}", describe_penalty(&penalty));
        }
        if let Some(RuleSharing { coordination, on_store_failure }) = self.sharing {
            let _ = write!(text, ", {}, on_store_failure {}", coordination.name(), on_store_failure.name());
        }
        text
    }
}

/// Describes a penalty: `locks out after 3 rejections for 1m, doubling up to 1d`.
pub(crate) fn describe_penalty(penalty: &Penalty) -> String {
    let (first, most) = (span_text(penalty.first()), span_text(penalty.longest()));
    let rejections = match penalty.after() {
        1 => "1 rejection".to_owned(),
        after => format!("{after} rejections"),
    };
    if penalty.first() == penalty.longest() {
        return format!("locks out after {rejections} for {first}");
    }
    format!("locks out after {rejections} for {first}, doubling up to {most}")
}

/// A tier of clients.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// Its limit; `None` if unlimited.
    pub rule: Option<Rule>,
}

/// The limit of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointRule {
    /// The requests that it applies to.
    pub pattern: EndpointPattern,
    /// The limit.
    pub rule: Rule,
}

/// A custom rule.
#[derive(Clone, Debug)]
pub struct CustomRule {
    /// The limit.
    pub rule: Rule,
    /// The requests that it applies to.
    pub matches: RuleMatch,
    /// How clients are grouped into counters.
    pub count: CounterScope,
    /// The cost of a request.
    pub cost: RuleCost,
    /// When it is charged.
    pub charge: ChargeBasis,
    /// The field of the body that names the `user` of this rule. The rule counts the address besides: a client can send any name.
    pub body_user: Option<String>,
}

impl CustomRule {
    /// Whether every request costs one unit, charged up front, for identities of its head.
    pub(crate) fn is_plain(&self) -> bool {
        self.cost == RuleCost::Constant(Cost::ONE)
            && self.charge == ChargeBasis::UpFront
            && self.body_user.is_none()
    }
}

/// A limit on concurrent requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConcurrencyRule {
    /// Its name.
    pub name: String,
    /// The id in the keys of its counters.
    pub id: RuleId,
    /// The maximum number of requests in progress: on all nodes with [`Coordination::Central`], otherwise on this node.
    pub concurrent: u32,
    /// Whether it is enforced.
    pub mode: Mode,
    /// Whether clients are told about it.
    pub is_reported: bool,
    /// The requests that it applies to.
    pub matches: RuleMatch,
    /// How clients are grouped into counters.
    pub count: CounterScope,
    /// The response to a request that it rejects; `None` is the usual one.
    pub rejection: Option<Box<RejectionPlan>>,
    /// How nodes share the permits; `None` if each node counts its own requests.
    pub sharing: Option<RuleSharing>,
    /// The line in the policy.
    pub line: u32,
}

impl ConcurrencyRule {
    /// Whether all nodes together have the permits, so that the store grants them.
    pub fn has_shared_permits(&self) -> bool {
        self.sharing.is_some_and(|sharing| sharing.coordination == Coordination::Central)
    }

    /// Describes the limit: `at most 10 concurrent requests`.
    pub fn describe(&self) -> String {
        format!("at most {} concurrent requests", self.concurrent)
    }
}

/// The requests that a rule applies to. All given conditions must be met; an empty one always is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleMatch {
    /// Any of these methods.
    pub methods: Vec<String>,
    /// Any of these paths.
    pub paths: Vec<EndpointPattern>,
    /// All of these headers.
    pub headers: Vec<HeaderMatch>,
    /// A condition that must be true.
    pub when: Option<RuleCondition>,
}

/// A header that a request must have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatch {
    /// Its name.
    pub name: HeaderName,
    /// Any of these values; if empty, any value.
    pub values: Vec<String>,
}

/// A condition on the request. Two conditions are equal if their source is.
#[derive(Clone, Debug)]
pub struct RuleCondition {
    /// The source of the CEL expression.
    pub source: String,
    /// The compiled expression.
    pub expression: Arc<Expression>,
}

impl PartialEq for RuleCondition {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for RuleCondition {}

impl Hash for RuleCondition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash(state);
    }
}

/// How a rule groups clients into counters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CounterScope {
    /// One counter for each client, as identified by `identify_by`.
    Client,
    /// One counter for all clients.
    Everybody,
    /// One counter for each combination of these identities.
    Per(Vec<ClientKind>),
    /// One counter for each of these identities separately.
    PerEach(Vec<ClientKind>),
}

impl fmt::Display for CounterScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            |of: &[ClientKind]| of.iter().map(|identity| identity.name()).collect::<Vec<_>>().join(", ");
        match self {
            Self::Client => f.write_str("each client"),
            Self::Everybody => f.write_str("all clients together"),
            Self::Per(of) => write!(f, "per {}", names(of)),
            Self::PerEach(of) => write!(f, "per each of {}", names(of)),
        }
    }
}
