//! How much may pass.

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use http::header::HeaderName;
use tidegate_core::{Algorithm, Cost, LeakyBucket, Limit, Penalty, RuleId, TimeSpan};

use crate::endpoints::EndpointPattern;
use crate::expression::Expression;
use crate::identity::ClientKind;
use crate::plan::{Charge, Mode, Quota, RuleCost};
use crate::units::span_text;

/// All limits, in the order in which a request meets them.
#[derive(Clone, Debug, Default)]
pub struct RateLimits {
    /// Everybody together.
    pub global: Option<Rule>,
    /// Each tenant.
    pub tenant: Option<Rule>,
    /// Each client without a tier.
    pub default: Option<Rule>,
    /// Each client of a tier, instead of `default`.
    pub tiers: Vec<Tier>,
    /// What the operator added.
    pub rules: Vec<CustomRule>,
    /// Each client at an endpoint; the most specific applies.
    pub endpoints: Vec<EndpointRule>,
    /// How many requests at once.
    pub concurrent: Vec<ConcurrencyRule>,
}

impl RateLimits {
    /// Every rule of a rate in the order in which a request meets them; unlimited tiers have none.
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
    /// Its name: `global`, `tenant`, `default`, `tier:NAME`, `endpoint:PATH`, or the operator's own.
    pub name: String,
    /// The id that counters are kept under.
    pub id: RuleId,
    /// What is counted.
    pub limit: Limit,
    /// Units per window, as written.
    pub requests: u64,
    /// The window, as written.
    pub window: TimeSpan,
    /// Units at once, where they were written.
    pub burst: Option<u64>,
    /// The longest wait, where it was written.
    pub max_wait: Option<TimeSpan>,
    /// What clients are told of it.
    pub quota: Quota,
    /// Whether it refuses, or only watches.
    pub mode: Mode,
    /// A lock-out for whoever is refused again and again.
    pub penalty: Option<Penalty>,
    /// The line it stands on.
    pub line: u32,
}

impl Rule {
    /// The algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.limit.algorithm()
    }

    /// The longest that a request waits under it: as written, or the algorithm's default.
    pub fn longest_wait(&self) -> TimeSpan {
        match self.algorithm() {
            Algorithm::LeakyBucket => self.max_wait.unwrap_or(LeakyBucket::DEFAULT_MAX_WAIT),
            _ => TimeSpan::ZERO,
        }
    }

    /// The limit in words: `100 per 1m, token_bucket, burst 20`.
    pub fn describe(&self) -> String {
        let burst = self.burst.map(|burst| format!(", burst {burst}")).unwrap_or_default();
        let max_wait =
            self.max_wait.map(|wait| format!(", max_wait {}", span_text(wait))).unwrap_or_default();
        format!("{} per {}, {}{burst}{max_wait}", self.requests, span_text(self.window), self.algorithm())
    }

    /// The limit in words, and all else that is out of the ordinary: `…, shadow`.
    pub fn describe_all(&self) -> String {
        let mut text = self.describe();
        if self.mode != Mode::Enforce {
            // Writing to a text does not fail.
            let _ = write!(text, ", {}", self.mode);
        }
        if let Some(penalty) = self.penalty {
            let _ = write!(text, ", {}", describe_penalty(&penalty));
        }
        text
    }
}

/// A penalty in words: `locks out after 3 refusals for 1m, doubling to 1d`.
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
    /// Its limit; `None` is unlimited.
    pub rule: Option<Rule>,
}

/// A limit at an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointRule {
    /// Which requests it means.
    pub pattern: EndpointPattern,
    /// The limit.
    pub rule: Rule,
}

/// A limit of the operator's own.
#[derive(Clone, Debug)]
pub struct CustomRule {
    /// The limit.
    pub rule: Rule,
    /// Where it applies.
    pub matches: RuleMatch,
    /// Whom it counts.
    pub count: CounterScope,
    /// What a request takes of it.
    pub cost: RuleCost,
    /// When it is charged.
    pub charge: Charge,
}

impl CustomRule {
    /// Whether every request takes one unit, up front.
    pub(crate) fn is_plain(&self) -> bool {
        self.cost == RuleCost::Constant(Cost::ONE) && self.charge == Charge::UpFront
    }
}

/// How many requests of a client may be under way at once, on this node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConcurrencyRule {
    /// Its name.
    pub name: String,
    /// The id that requests under way are counted under.
    pub id: RuleId,
    /// So many at once.
    pub concurrent: u32,
    /// Whether it refuses, or only watches.
    pub mode: Mode,
    /// Where it applies.
    pub matches: RuleMatch,
    /// Whom it counts.
    pub count: CounterScope,
    /// The line it stands on.
    pub line: u32,
}

impl ConcurrencyRule {
    /// The limit in words: `10 at once`.
    pub fn describe(&self) -> String {
        format!("at most {} concurrent requests", self.concurrent)
    }
}

/// Where a rule applies: all that is given must hold; what is empty holds always.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleMatch {
    /// Any of these methods.
    pub methods: Vec<String>,
    /// Any of these paths.
    pub paths: Vec<EndpointPattern>,
    /// All of these headers.
    pub headers: Vec<HeaderMatch>,
    /// An expression that must be true.
    pub when: Option<RuleCondition>,
}

/// A header that a request must have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatch {
    /// Its name.
    pub name: HeaderName,
    /// Any of these values; none given is any value.
    pub values: Vec<String>,
}

/// A condition on the request. Two are equal if they are written alike.
#[derive(Clone, Debug)]
pub struct RuleCondition {
    /// The CEL expression, as written.
    pub source: String,
    /// The expression, compiled.
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

/// Whom a rule counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CounterScope {
    /// Each client, as `identify_by` tells them apart.
    Client,
    /// Everybody together.
    Everybody,
    /// Each combination of these.
    Per(Vec<ClientKind>),
    /// Each of these, apart.
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
