//! Rejects rules whose counters clients can evade, and penalties that would lock out other clients.

use std::collections::HashSet;

use crate::compile::WarningTargets;
use crate::identity::ClientKind;
use crate::plan::{ChargeBasis, Clients, CounterScope, Mode, RateLimits, Rule, RuleMatch};
use crate::raw::{Finding, ProblemReport};
use crate::render::quote;

/// Reports all rules whose counters do not identify a client well enough.
pub(super) fn check(
    clients: &Clients,
    limits: &RateLimits,
    targets: &WarningTargets,
    report: &mut ProblemReport<'_>,
) {
    penalties(clients, limits, targets, report);
    let rates = AddressLimits::of_rates(clients, limits);
    let permits = AddressLimits::of_permits(limits);
    let rules = || limits.rules.iter().filter(|custom| custom.body_user.is_none());
    let custom = rules().map(|custom| (&custom.rule.name, custom.rule.id, &custom.count));
    let custom = custom.zip(rules().map(|custom| (&custom.matches, &rates)));
    let concurrent = limits.concurrent.iter().map(|rule| (&rule.name, rule.id, &rule.count));
    let concurrent = concurrent.zip(limits.concurrent.iter().map(|rule| (&rule.matches, &permits)));
    for ((name, id, count), (matches, by_address)) in custom.chain(concurrent) {
        let Some(kind) = chosen_by_client(count, clients) else { continue };
        if by_address.cover(matches) {
            continue;
        }
        let what = format!(
            "a client evades {} by changing its {kind}: every new {kind} has an unused counter",
            quote(name)
        );
        let hint = "count by address, with `per: ip`, or by address as well, with `per_each: [ip, …]`; or add an enforced rule with `per: ip` and the same `match`";
        report.push(Finding::error(targets.rule(id), what).hint(hint));
    }
}

/// Penalties of rules that have no counter that may lock out its client.
fn penalties(
    clients: &Clients,
    limits: &RateLimits,
    targets: &WarningTargets,
    report: &mut ProblemReport<'_>,
) {
    // A rule with the user of a body counts the address besides.
    let custom = limits.rules.iter().filter(|custom| custom.body_user.is_none()).map(|custom| {
        let kinds = match &custom.count {
            CounterScope::Client => &clients.identify_by,
            CounterScope::Per(kinds) | CounterScope::PerEach(kinds) => kinds,
            // The rule has been reported: it would lock out everybody.
            CounterScope::Everybody => const { &Vec::new() },
        };
        (&custom.rule, kinds.as_slice())
    });
    let tenant = limits.tenant.iter().map(|rule| (rule, &[ClientKind::Tenant][..]));
    let tiers = limits.tiers.iter().filter_map(|tier| tier.rule.as_ref());
    let of_client = limits.default.iter().chain(tiers).chain(limits.endpoints.iter().map(|one| &one.rule));
    let of_client = of_client.map(|rule: &Rule| (rule, clients.identify_by.as_slice()));
    for (rule, kinds) in custom.chain(tenant).chain(of_client) {
        let Some(kind) = kinds.first().filter(|_| rule.penalty.is_some()) else { continue };
        if kinds.iter().any(|kind| clients.may_lock_out(*kind)) {
            continue;
        }
        let why = match kind {
            ClientKind::User | ClientKind::Tenant => {
                "a client can send requests in the name of another, as a header is not verified"
            }
            _ => "other clients can have the same one",
        };
        let what =
            format!("the `penalty` of {} would lock out other clients by {kind}: {why}", quote(&rule.name));
        let hint = "count by address, with `per: ip`, or by a verified user (`clients: { user: { jwt: … } }`) or API key; or remove `penalty`";
        report.push(Finding::error(targets.rule(rule.id), what).hint(hint));
    }
}

/// The identity by which a client opens new counters of a rule, if there is one. With `per_each`, any other identity
/// limits the client.
fn chosen_by_client(count: &CounterScope, clients: &Clients) -> Option<ClientKind> {
    let is_chosen = |kind: &&ClientKind| clients.is_chosen_by_client(**kind);
    match count {
        CounterScope::Client | CounterScope::Everybody => None,
        CounterScope::Per(kinds) => kinds.iter().find(is_chosen).copied(),
        CounterScope::PerEach(kinds) => {
            kinds.first().filter(|_| kinds.iter().all(|kind| is_chosen(&kind))).copied()
        }
    }
}

/// The enforced limits per address. A client cannot choose its address.
#[derive(Debug)]
pub(crate) struct AddressLimits<'p> {
    /// The requests that they apply to.
    matches: HashSet<&'p RuleMatch>,
    /// A limit applies to all requests.
    all: bool,
}

impl<'p> AddressLimits<'p> {
    /// The limits on rates.
    pub(crate) fn of_rates(clients: &Clients, limits: &'p RateLimits) -> Self {
        let is_enforced = |rule: &Rule| rule.mode == Mode::Enforce;
        let rules = limits.rules.iter().filter(|custom| {
            is_enforced(&custom.rule)
                && custom.charge == ChargeBasis::UpFront
                && (custom.body_user.is_some() || counts_address(&custom.count))
        });
        let matches: HashSet<_> = rules.map(|custom| &custom.matches).collect();
        // Every client is an address, and all have the same limit.
        let is_default = clients.identify_by.first() == Some(&ClientKind::Ip)
            && limits.tiers.is_empty()
            && limits.default.as_ref().is_some_and(is_enforced);
        Self { all: is_default || matches.contains(&RuleMatch::default()), matches }
    }

    /// The limits on concurrent requests.
    fn of_permits(limits: &'p RateLimits) -> Self {
        let rules = limits.concurrent.iter();
        let rules = rules.filter(|rule| rule.mode == Mode::Enforce && counts_address(&rule.count));
        let matches: HashSet<_> = rules.map(|rule| &rule.matches).collect();
        Self { all: matches.contains(&RuleMatch::default()), matches }
    }

    /// Whether one of them applies to every request.
    pub(crate) fn cover_all(&self) -> bool {
        self.all
    }

    /// Whether one of them applies to all requests of a rule: its conditions are the same, or fewer.
    fn cover(&self, rule: &RuleMatch) -> bool {
        self.all
            || !self.matches.is_empty()
                && (0..16).any(|dropped| self.matches.contains(&without(rule, dropped)))
    }
}

/// The conditions of a rule without those that `dropped` has a bit for.
fn without(rule: &RuleMatch, dropped: u8) -> RuleMatch {
    let mut rest = rule.clone();
    if dropped & 1 != 0 {
        rest.methods.clear();
    }
    if dropped & 2 != 0 {
        rest.paths.clear();
    }
    if dropped & 4 != 0 {
        rest.headers.clear();
    }
    if dropped & 8 != 0 {
        rest.when = None;
    }
    rest
}

fn counts_address(count: &CounterScope) -> bool {
    match count {
        CounterScope::Per(kinds) => kinds == &[ClientKind::Ip],
        CounterScope::PerEach(kinds) => kinds.contains(&ClientKind::Ip),
        CounterScope::Client | CounterScope::Everybody => false,
    }
}
