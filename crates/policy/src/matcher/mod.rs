//! Matches requests to the rules of a policy.
//!
//! A matcher is built once from a [`Plan`] and is immutable. It indexes endpoints and rules by path, networks by prefix and
//! exempt keys by their bytes, so only rules whose path matches are evaluated, in the order of the policy. It keeps no
//! counters and makes no decision: it returns the checks, and a store decides them.

mod condition;
mod credentials;
mod evaluate;
mod exclusion;
mod index;
mod matched;
mod named_counter;
mod scratch_pool;
mod tables;
mod target;

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

pub use exclusion::Exclusion;
use exclusion::ExemptKeys;
use index::PathIndex;
use matched::RuleRef;
pub use matched::{
    Admission, AppliedRules, BanSource, ChargedCheck, CheckResult, ConcurrencyCheck, Exemption,
    MatchedRequest, RuntimeData, Scratch, Settlement,
};
pub use scratch_pool::{PooledScratch, ScratchPool};
use tables::PathTables;
pub(crate) use target::Target;

use crate::directory::Directory;
use crate::facts::Facts;
use crate::identity::HeaderRules;
use crate::networks::Networks;
use crate::plan::{
    ChargeBasis, ConcurrencyRule, CustomRule, ExceedAction, HostPattern, OnInvalid, PathCase, Plan, Route,
    Rule, RuleCost,
};

/// A plan, indexed for requests.
///
/// ```
/// use http::HeaderMap;
/// use tidegate_core::Timestamp;
/// use tidegate_policy::{Admission, Facts, Matcher, NoFiles, Scratch, compile};
///
/// let policy = b"rate_limits:\n  default: { requests: 100, window: 60 }\n  endpoints: { /search: { requests: 5, window: 1 } }";
/// let matcher = Matcher::new(compile("policy.yaml", policy, &NoFiles)?.plan);
/// let headers = HeaderMap::new();
/// let facts = Facts { method: "GET", host: Some("example.org"), path: "/search", headers: &headers, peer: [192, 0, 2, 1].into(), body: tidegate_policy::BodyFacts::Unknown };
/// let mut scratch = Scratch::default();
/// let Admission::Checked(matched) = matcher.admit(&facts, None, Timestamp::ZERO, &mut scratch) else { panic!() };
/// let names: Vec<_> = matched.rules().map(|rule| rule.name.as_str()).collect();
/// assert_eq!(names, ["default", "endpoint:/search"]);
/// # Ok::<(), tidegate_policy::Problems>(())
/// ```
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties of a policy")]
pub struct Matcher {
    plan: Arc<Plan>,
    routes: PathIndex,
    /// Endpoints, and rules with paths.
    paths: PathTables,
    /// The path case, if it is the same for all routes.
    path_case: Option<PathCase>,
    /// Indexes of rules without a path, in order.
    everywhere: Vec<u32>,
    header_rules: HeaderRules,
    exempt: Networks,
    exempt_keys: ExemptKeys,
    bans: Networks,
    /// The networks that are served; `None` for all.
    allowed: Option<Networks>,
    has_penalties: bool,
    has_penalties_or_waits: bool,
    has_settlements: bool,
    has_actions: bool,
    has_shared_permits: bool,
    /// Whether a rule counts the user that a body names.
    has_body_users: bool,
    /// Whether a token or a key may get a request rejected.
    checks_credentials: bool,
    rules_by_name: HashMap<Box<str>, RuleRef, RandomState>,
}

impl Matcher {
    /// Indexes a plan.
    pub fn new(plan: impl Into<Arc<Plan>>) -> Self {
        let plan = plan.into();
        let limits = &plan.rate_limits;
        let mut routes = PathIndex::default();
        for (at, route) in (0..).zip(&plan.routes) {
            routes.insert(&route.path, at);
        }
        let mut cases = PathCase::ALL.into_iter().filter(|case| plan.has_path_case(*case));
        let path_case = cases.next().filter(|_| cases.next().is_none());
        // Concurrency rules are numbered after the rate rules.
        let concurrent = limits.concurrent.iter().map(|rule| &rule.matches);
        let matches = limits.rules.iter().map(|custom| &custom.matches).chain(concurrent);
        let everywhere =
            (0..).zip(matches).filter(|(_, matches)| matches.paths.is_empty()).map(|(at, _)| at).collect();
        let paths = PathTables::new(&plan);
        let exempt = &plan.clients.exempt;
        let exempt_keys = ExemptKeys::new(&exempt.api_keys);
        let (exempt, bans) = (Networks::new(&exempt.networks), Networks::new(&plan.bans));
        let allowed = plan.allow.as_deref().map(Networks::new);
        let is_settled_later = |custom: &CustomRule| {
            custom.charge != ChargeBasis::UpFront || matches!(custom.cost, RuleCost::Body(_))
        };
        let has_settlements = limits.rules.iter().any(is_settled_later);
        let has_actions = limits.iter().any(|rule| rule.on_exceed != ExceedAction::Reject);
        let has_body_users = limits.rules.iter().any(|custom| custom.body_user.is_some());
        let has_penalties = limits.iter().any(|rule| rule.penalty.is_some());
        let waits = |rule: &Rule| matches!(rule.on_exceed, ExceedAction::Wait { .. });
        let has_penalties_or_waits = has_penalties || limits.iter().any(waits);
        let has_shared_permits = limits.concurrent.iter().any(ConcurrencyRule::has_shared_permits);
        let header_rules = HeaderRules::new(&plan);
        let checks_credentials = plan.clients.on_invalid != OnInvalid::Forward
            || plan.identities.token_sources().next().is_some()
            || plan.identities.has_key_in_authorization();
        let rules_by_name =
            RuleRef::all(&plan).map(|(rule, rule_ref)| (rule.name.as_str().into(), rule_ref)).collect();
        Self {
            plan,
            routes,
            paths,
            path_case,
            everywhere,
            header_rules,
            exempt,
            exempt_keys,
            bans,
            allowed,
            has_penalties,
            has_penalties_or_waits,
            has_settlements,
            has_actions,
            has_shared_permits,
            has_body_users,
            checks_credentials,
            rules_by_name,
        }
    }

    /// The plan it was built from.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The header checks of [`Matcher::read`].
    pub fn header_rules(&self) -> &HeaderRules {
        &self.header_rules
    }

    /// Whether any rule locks clients out.
    pub fn has_penalties(&self) -> bool {
        self.has_penalties
    }

    /// Whether any rule locks clients out or lets requests wait.
    pub fn has_penalties_or_waits(&self) -> bool {
        self.has_penalties_or_waits
    }

    /// Whether any rule has a cost that is settled later.
    pub fn has_settlements(&self) -> bool {
        self.has_settlements
    }

    /// Whether any rule has an action that an interface has to perform.
    pub fn has_actions(&self) -> bool {
        self.has_actions
    }

    /// Whether all nodes together have the permits of any concurrency rule.
    pub fn has_shared_permits(&self) -> bool {
        self.has_shared_permits
    }

    /// Whether any rule counts the user that the body of a request names.
    pub fn has_body_users(&self) -> bool {
        self.has_body_users
    }

    /// Whether limits ignore case for the path of a request.
    pub(crate) fn path_case(&self, facts: &Facts<'_>) -> PathCase {
        self.path_case.unwrap_or_else(|| {
            let route = self.route(facts.host.unwrap_or_default(), facts.path);
            route.map_or(self.plan.http, |route| route.http).path_case
        })
    }

    /// The first route that matches `host` and `path`, both normalised.
    pub fn route(&self, host: &str, path: &str) -> Option<&Route> {
        let mut first = None;
        self.routes.visit(path, &mut |at| {
            let is_earlier = first.is_none_or(|first| at < first);
            if is_earlier && self.plan.routes.get(at as usize).is_some_and(|route| route.host.matches(host)) {
                first = Some(at);
            }
        });
        self.plan.routes.get(first? as usize)
    }
}

impl HostPattern {
    /// Whether the pattern matches `host`, ignoring case.
    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(name) => name.eq_ignore_ascii_case(host),
            Self::Below(name) => {
                let end = host.len().checked_sub(name.len()).filter(|start| *start > 0);
                let end = end.and_then(|start| host.as_bytes().get(start..));
                end.is_some_and(|end| end.eq_ignore_ascii_case(name.as_bytes()))
            }
        }
    }
}

/// The active policy: a matcher and its directory. Servers keep it behind one pointer and swap both together, so no
/// request sees a partial change.
#[derive(Debug, Clone)]
pub struct ActivePolicy {
    /// The rules.
    pub matcher: Arc<Matcher>,
    /// The directory of API keys.
    pub directory: Option<Arc<Directory>>,
}

impl ActivePolicy {
    /// Activates a plan with the directory it was compiled with.
    pub fn new(plan: Plan) -> Self {
        let directory = plan.directory.clone();
        Self { matcher: Arc::new(Matcher::new(plan)), directory }
    }
}

#[cfg(test)]
mod tests;
