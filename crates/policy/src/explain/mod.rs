//! Explains how a policy handles a request, as data and as text.
//!
//! All counters are assumed to be unused, so the result depends only on the policy and the request, unless the caller supplies
//! their state ([`LiveCounters`]). The request is checked, routed and matched by the same code as in the gateway.

mod client;
mod empty_ledger;
mod text;

use std::net::IpAddr;

use http::header::{Entry, HOST, HeaderValue};
use http::{HeaderMap, Method, Uri, Version};
use serde::{Serialize, Serializer};
use tidegate_core::{Check, Cost, Decision, Limit, Outcome, OwnedKey, Role, TimeSpan, Timestamp, Verdict};

use crate::facts::{BodyFacts, Facts};
use crate::identity::{ClientName, HeaderError};
use crate::matcher::{
    Admission, BanSource, ConcurrencyCheck, Exemption, MatchedRequest, Matcher, RuntimeData, Scratch,
};
use crate::path::Readings;
use crate::plan::{ExceedAction, Plan, Route, Rule, RuleSharing, describe_penalty};
use crate::request::{HeaderTraits, NormalRequest, ReadOptions, RequestError, RequestHead};
use crate::units::span_text;
pub use client::ExplainedClient;
use client::sanitize;

/// The host of a request that has none.
const LOCALHOST: HeaderValue = HeaderValue::from_static("localhost");

/// A request to explain, as a client would send it.
#[derive(Clone, Copy, Debug)]
pub struct ExplainRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// The request target: path and query, or a full URL.
    pub target: &'a str,
    /// The headers. Without a `Host` the host is `localhost`.
    pub headers: &'a HeaderMap,
    /// The address at the other end of the connection.
    pub peer: IpAddr,
    /// The body, for rules that count the user that it names.
    pub body: BodyFacts<'a>,
}

/// How a policy handles one request. Secrets are shortened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The method.
    pub method: String,
    /// The host.
    pub host: String,
    /// The path as matched and forwarded, or as sent if the request is rejected.
    pub path: String,
    /// The other readings of the path, to which limits apply too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub readings: Vec<String>,
    /// The client.
    pub client: ExplainedClient,
    /// The route.
    pub route: Option<ExplainedRoute>,
    /// The verdict.
    pub verdict: ExplainedVerdict,
    /// The rate rules that apply, in order.
    pub rules: Vec<ExplainedRule>,
    /// The concurrency rules that apply, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "at_once")]
    pub concurrency_checks: Vec<ExplainedConcurrency>,
    /// The index in `rules` of the rule that single-valued headers report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tightest: Option<usize>,
    /// The checks of `rules`, for a caller that looks at their counters.
    #[serde(skip)]
    pub checks: Vec<ExplainedCheck>,
}

/// A check that a request causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedCheck {
    /// The counter.
    pub key: OwnedKey,
    /// The limit.
    pub limit: Limit,
    /// The cost.
    pub cost: Cost,
    /// Whether it can reject the request.
    pub role: Role,
}

impl ExplainedCheck {
    /// The check.
    pub fn as_check(&self) -> Check<'_> {
        Check::new(self.key.as_key(), &self.limit).cost(self.cost).role(self.role)
    }
}

/// The state of the counters of a request.
#[derive(Clone, Debug)]
pub struct LiveCounters {
    /// What the store would decide about [`Explanation::checks`].
    pub decision: Decision,
    /// The checks whose client is locked out, and for how long.
    pub lock_outs: Vec<(usize, TimeSpan)>,
}

/// The route of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedRoute {
    /// The host of the route.
    pub host: String,
    /// The path of the route.
    pub path: String,
    /// The name of the upstream.
    pub upstream: String,
    /// Its servers.
    pub servers: Vec<String>,
    /// The bulkhead of the route, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulkhead: Option<String>,
    /// What happens when the upstream fails or is slow, by the key of the policy. A mapping in JSON.
    #[serde(serialize_with = "serialize_mapping")]
    pub resilience: Vec<(&'static str, String)>,
}

/// The verdict on a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum ExplainedVerdict {
    /// The request is exempt from limits.
    Exempt {
        /// Why.
        why: String,
    },
    /// The request is rejected with 403.
    Banned {
        /// The network or client that is banned.
        subject: String,
        /// `policy`, or `operator` for a ban that was set at run time.
        by: &'static str,
    },
    /// The request is rejected with 403: the client's address is in no network of `allow`.
    NotAllowed,
    /// The request is rejected before limits are checked.
    Rejected {
        /// The status of the response: 400, or 404 if no route matches.
        status: u16,
        /// Why.
        reason: String,
    },
    /// The request is admitted.
    Admitted,
    /// The request is rejected with 429.
    LimitExceeded {
        /// The rule that rejects it.
        by: String,
    },
    /// The request is rejected with 429, because the client is locked out.
    LockedOut {
        /// The rule that locked it out.
        by: String,
        /// For how long it still does.
        left: String,
    },
}

/// A rule that applies to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedRule {
    /// Its name.
    pub name: String,
    /// The line in the policy.
    pub line: u32,
    /// The description of the limit.
    pub limit: String,
    /// The counter: `everybody`, or the client's name.
    pub key: String,
    /// The cost of the request.
    pub cost: u64,
    /// How the cost is settled, if it is not charged up front.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge: Option<String>,
    /// Whether it is enforced for this client.
    pub binding: bool,
    /// The mode: `enforce`, `shadow`, or `canary` and a share.
    pub mode: String,
    /// What happens to a request that exceeds it, if that is not a rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exceed: Option<String>,
    /// The lock-out after repeated rejections, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub penalty: Option<String>,
    /// How nodes share the counter, and what happens while the shared store fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<ExplainedSharing>,
    /// Whether it applies only because its condition could not be evaluated.
    pub condition_failed: bool,
    /// The outcome with an unused counter.
    pub outcome: ExplainedOutcome,
}

/// How nodes share the counter of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedSharing {
    /// The coordination.
    pub coordination: &'static str,
    /// What happens while the shared store fails.
    pub on_store_failure: &'static str,
    /// Both as text.
    #[serde(skip)]
    pub text: String,
}

impl ExplainedSharing {
    fn new(sharing: RuleSharing) -> Self {
        Self {
            coordination: sharing.coordination.name(),
            on_store_failure: sharing.on_store_failure.name(),
            text: sharing.to_string(),
        }
    }
}

/// A concurrency rule that applies to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedConcurrency {
    /// Its name.
    pub name: String,
    /// The line in the policy.
    pub line: u32,
    /// The description of the limit.
    pub limit: String,
    /// The counter: `everybody`, or the client's name.
    pub key: String,
    /// Whether it is enforced for this client.
    pub binding: bool,
    /// The mode: `enforce`, `shadow`, or `canary` and a share.
    pub mode: String,
    /// How nodes share the permits, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<ExplainedSharing>,
    /// Whether it applies only because its condition could not be evaluated.
    pub condition_failed: bool,
}

impl ExplainedConcurrency {
    fn new(check: &ConcurrencyCheck<'_>) -> Self {
        Self {
            name: check.rule.name.clone(),
            line: check.rule.line,
            limit: check.rule.describe(),
            key: ClientName::from_key(check.key.client).to_string(),
            binding: check.role == Role::Binding,
            mode: check.rule.mode.to_string(),
            sharing: check.rule.sharing.map(ExplainedSharing::new),
            condition_failed: check.condition_failed,
        }
    }
}

/// The outcome of a limit with an unused counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedOutcome {
    /// `pass`, `not_until` or `never`.
    pub verdict: &'static str,
    /// How long the request is delayed, or when to retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The largest cost that could ever fit.
    pub limit: u64,
    /// The remaining units afterwards.
    pub remaining: u64,
}

/// Explains how the policy of `matcher` handles a request; `runtime` is a directory, or a directory and bans.
pub fn explain<'a>(
    matcher: &'a Matcher,
    request: &ExplainRequest<'a>,
    runtime: impl Into<RuntimeData<'a>>,
    now: Timestamp,
) -> Explanation {
    explain_live(matcher, request, (runtime.into(), now), None)
}

/// Explains like [`explain`], with the state of the counters if it is known. A state of other checks is not used.
pub fn explain_live<'a>(
    matcher: &'a Matcher,
    request: &ExplainRequest<'a>,
    (runtime, now): (RuntimeData<'a>, Timestamp),
    live: Option<&LiveCounters>,
) -> Explanation {
    let explainer = Explainer { matcher, request: *request, runtime, now, live };
    explainer.explain().unwrap_or_else(|verdict| explainer.unreadable(verdict))
}

/// Explains one request.
struct Explainer<'e> {
    matcher: &'e Matcher,
    request: ExplainRequest<'e>,
    runtime: RuntimeData<'e>,
    now: Timestamp,
    live: Option<&'e LiveCounters>,
}

impl ExplainedVerdict {
    fn rejected(error: &RequestError) -> Self {
        Self::Rejected { status: error.status().as_u16(), reason: error.to_string() }
    }

    fn exempt(why: Exemption) -> Self {
        let why = match why {
            Exemption::Network(network) => format!("address in {network}"),
            Exemption::ApiKey => "API key is listed in `clients.exempt`".to_owned(),
        };
        Self::Exempt { why }
    }

    fn banned(by: BanSource<'_>) -> Self {
        let (subject, by) = match by {
            BanSource::Policy(network) => (network.to_string(), "policy"),
            BanSource::NotAllowed => return Self::NotAllowed,
            BanSource::Operator(ban) => (ban.subject.to_string(), "operator"),
        };
        Self::Banned { subject, by }
    }
}

impl Explainer<'_> {
    fn explain(&self) -> Result<Explanation, ExplainedVerdict> {
        let ExplainRequest { method, target, headers, peer, .. } = self.request;
        let invalid = |reason| ExplainedVerdict::Rejected { status: 400, reason };
        Method::from_bytes(method.as_bytes()).map_err(|_| invalid("invalid method".to_owned()))?;
        let uri: Uri = target.parse().map_err(|error| invalid(format!("invalid request target: {error}")))?;
        let mut headers = headers.clone();
        if let Entry::Vacant(host) = headers.entry(HOST) {
            // Unlike the gateway, `explain` accepts a request without a host.
            let value = uri.authority().map_or(Ok(LOCALHOST), |host| HeaderValue::from_str(host.as_str()));
            host.insert(value.unwrap_or(LOCALHOST));
        }
        let traits = HeaderTraits::trim_and_scan(&mut headers);
        let version = Some(Version::HTTP_11);
        let head = RequestHead { method, uri: &uri, version, headers: &mut headers, traits, peer };
        let needs_route = !self.matcher.plan().routes.is_empty();
        let options = ReadOptions { directory: self.runtime.directory, needs_route, removes_headers: true };
        let read = self.matcher.read(head, options, || self.now);
        Ok(self.readable(&read.map_err(|error| ExplainedVerdict::rejected(&error))?))
    }

    fn unreadable(&self, verdict: ExplainedVerdict) -> Explanation {
        let ExplainRequest { method, target, headers, peer, body } = self.request;
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        let client = self.client(&Facts { method, host: Some(host), path, headers, peer, body });
        let [method, host, path] = [method, host, path].map(sanitize);
        Explanation {
            method,
            host,
            path,
            readings: Vec::new(),
            client,
            route: None,
            verdict,
            rules: Vec::new(),
            concurrency_checks: Vec::new(),
            tightest: None,
            checks: Vec::new(),
        }
    }

    fn client(&self, facts: &Facts<'_>) -> ExplainedClient {
        let identify =
            |facts| self.matcher.plan().identities.identify(facts, self.runtime.directory, self.now);
        let sent = Facts { headers: self.request.headers, ..*facts };
        ExplainedClient::new(self.matcher, &identify(facts), &identify(&sent))
    }

    fn readable(&self, request: &NormalRequest<'_, '_>) -> Explanation {
        let facts = Facts { body: self.request.body, ..request.facts() };
        let mut readings = Readings::default();
        readings.set(facts.path, self.matcher.path_case(&facts));
        let mut scratch = Scratch::default();
        let (mut concurrency_checks, mut checks) = (Vec::new(), Vec::new());
        let (mut verdict, rules, tightest) =
            match self.matcher.admit(&facts, self.runtime, self.now, &mut scratch) {
                Admission::Exempt { why } => (ExplainedVerdict::exempt(why), Vec::new(), None),
                Admission::Banned { by } => (ExplainedVerdict::banned(by), Vec::new(), None),
                Admission::Checked(matched) => {
                    concurrency_checks
                        .extend(matched.concurrency_checks().map(|check| ExplainedConcurrency::new(&check)));
                    let owned = |check: &Check<'_>| {
                        let Check { key, limit, cost, role } = *check;
                        ExplainedCheck { key: key.into(), limit: *limit, cost, role }
                    };
                    checks.extend(matched.checks().iter().map(owned));
                    explain_checks(&matched, self.now, self.live)
                }
            };
        // As in the gateway: the limits come first.
        if let Some(error) = &request.refused
            && matches!(verdict, ExplainedVerdict::Exempt { .. } | ExplainedVerdict::Admitted)
        {
            verdict = ExplainedVerdict::rejected(&RequestError::Headers(HeaderError::clone(error)));
        }
        Explanation {
            method: facts.method.to_owned(),
            host: facts.host.unwrap_or_default().to_owned(),
            path: facts.path.to_owned(),
            readings: readings.others(facts.path).map(str::to_owned).collect(),
            client: self.client(&facts),
            route: request.route.and_then(|route| ExplainedRoute::new(route, self.matcher.plan())),
            verdict,
            rules,
            concurrency_checks,
            tightest,
            checks,
        }
    }
}

fn serialize_mapping<S: Serializer>(
    settings: &[(&'static str, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(settings.iter().map(|(key, text)| (key, text)))
}

impl ExplainedRoute {
    fn new(route: &Route, plan: &Plan) -> Option<Self> {
        let upstream = plan.upstreams.get(route.upstream)?;
        Some(Self {
            host: route.host.to_string(),
            path: route.path.to_string(),
            upstream: upstream.name.clone(),
            servers: upstream.servers.clone(),
            bulkhead: route.bulkhead.as_ref().map(ToString::to_string),
            resilience: upstream.resilience.settings(&plan.upstreams),
        })
    }
}

fn explain_checks(
    matched: &MatchedRequest<'_>,
    now: Timestamp,
    live: Option<&LiveCounters>,
) -> (ExplainedVerdict, Vec<ExplainedRule>, Option<usize>) {
    let live = live.filter(|live| live.decision.outcomes.len() == matched.checks().len());
    let decision =
        live.map_or_else(|| empty_ledger::decide(matched.checks(), now), |live| live.decision.clone());
    let failed: Vec<_> = matched.failed_conditions().map(|rule| rule.id).collect();
    let checks = matched.checks().iter().zip(matched.rules()).zip(&decision.outcomes);
    let rules = checks
        .enumerate()
        .map(|(index, ((check, rule), outcome))| ExplainedRule {
            charge: matched.charge(index).map(ToString::to_string),
            penalty: matched.penalty(index).map(describe_penalty),
            condition_failed: failed.contains(&rule.id),
            ..explain_check(check, rule, outcome)
        })
        .collect();
    let rejecting_rule = decision.rejected_by.and_then(|index| matched.applied().rule(index));
    let longest = live.and_then(|live| live.lock_outs.iter().max_by_key(|(_, left)| *left));
    let lock_out = longest.and_then(|(index, left)| Some((matched.applied().rule(*index)?, *left)));
    let verdict = match (lock_out, rejecting_rule) {
        (Some((rule, left)), _) => {
            ExplainedVerdict::LockedOut { by: rule.name.clone(), left: span_text(left) }
        }
        (None, Some(rule)) => ExplainedVerdict::LimitExceeded { by: rule.name.clone() },
        (None, None) => ExplainedVerdict::Admitted,
    };
    (verdict, rules, matched.tightest(&decision))
}

fn explain_check(check: &Check<'_>, rule: &Rule, outcome: &Outcome) -> ExplainedRule {
    let (verdict, after) = match outcome.verdict {
        Verdict::Pass { wait } => ("pass", Some(wait).filter(|wait| !wait.is_zero())),
        Verdict::NotUntil { retry_after } => ("not_until", Some(retry_after)),
        Verdict::Never => ("never", None),
    };
    ExplainedRule {
        name: rule.name.clone(),
        line: rule.line,
        limit: rule.describe(),
        key: ClientName::from_key(check.key.client).to_string(),
        cost: check.cost.get(),
        charge: None,
        binding: check.role == Role::Binding,
        mode: rule.mode.to_string(),
        on_exceed: Some(&rule.on_exceed)
            .filter(|action| **action != ExceedAction::Reject)
            .map(ToString::to_string),
        penalty: None,
        sharing: rule.sharing.map(ExplainedSharing::new),
        condition_failed: false,
        outcome: ExplainedOutcome {
            verdict,
            after: after.map(span_text),
            limit: outcome.limit,
            remaining: outcome.remaining,
        },
    }
}
