//! Warns about limits that never reject, because another limit on the same requests is always stricter.
//!
//! An *envelope* bounds what a limit admits: at most `initial + rate · t` in any time t. A limit that admits everything
//! within another's envelope never rejects what the other admitted. The comparison is conservative: if it cannot prove
//! this, there is no warning.

use std::collections::{HashMap, HashSet};

use tidegate_core::Algorithm;

use crate::compile::WarningTargets;
use crate::plan::{CounterScope, Mode, Plan, Rule, RuleMatch};
use crate::raw::{Finding, ProblemReport};
use crate::render::quote;

/// The number of limits on the same requests that are compared; more would take quadratic time.
const MAX_COMPARED: usize = 64;

pub(super) fn find(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let limits = &plan.rate_limits;
    let mut warn = |rule: &Rule, by: &Rule| {
        let what =
            format!("{} never rejects a request: {} is always stricter", quote(&rule.name), quote(&by.name));
        let finding = Finding::warning(targets.rule(rule.id), what);
        report.push(finding.hint(format!(
            "lower or remove this limit; {} is {}",
            quote(&by.name),
            by.describe()
        )));
    };
    // Only a limit that is enforced for all clients makes another one redundant.
    let enforced = |rule: &&Rule| rule.mode == Mode::Enforce && rule.can_reject();
    let global = limits.global.as_ref().filter(enforced);
    let under_global = |rule: &Rule| global.filter(|global| is_stricter(global, rule));
    let tiers = || limits.tiers.iter().map(|tier| tier.rule.as_ref());

    // The global limit applies to every request of every client.
    for rule in [&limits.tenant, &limits.default].into_iter().flatten().chain(tiers().flatten()) {
        if let Some(global) = under_global(rule) {
            warn(rule, global);
        }
    }
    // Which of these limits applies depends on the client, so all of them must be stricter.
    let default = plan.clients.tiers.default.is_none().then_some(limits.default.as_ref());
    let has_tiers = plan.clients.tiers.assigns_tiers();
    let mut of_client: Vec<Option<&Rule>> =
        default.into_iter().chain(has_tiers.then(tiers).into_iter().flatten()).collect();
    // Equal limits are compared once; with too many different limits, nothing is compared.
    let mut seen = HashSet::new();
    of_client.retain(|of| seen.insert(of.map(|rule| rule.limit)));
    let few = of_client.len() <= MAX_COMPARED;
    let under_client = |rule: &Rule| {
        if !few {
            return None;
        }
        let tighter = |of: Option<&Rule>| of.filter(enforced).is_some_and(|of| is_stricter(of, rule));
        of_client.iter().copied().all(tighter).then(|| of_client.first().copied().flatten()).flatten()
    };
    for endpoint in &limits.endpoints {
        if let Some(by) = under_global(&endpoint.rule).or_else(|| under_client(&endpoint.rule)) {
            warn(&endpoint.rule, by);
        }
    }
    let mut groups: HashMap<(&RuleMatch, &CounterScope), Vec<&Rule>> = HashMap::new();
    for custom in limits.rules.iter().filter(|custom| custom.is_plain()) {
        let rule = &custom.rule;
        let group = groups.entry((&custom.matches, &custom.count)).or_default();
        let client = || (custom.count == CounterScope::Client).then(|| under_client(rule)).flatten();
        let twin = || group.iter().copied().filter(enforced).find(|other| is_stricter(other, rule));
        if let Some(by) = under_global(rule).or_else(client).or_else(twin) {
            warn(rule, by);
        } else if enforced(&rule)
            && let Some(looser) = group.iter().copied().find(|other| is_stricter(rule, other))
        {
            warn(looser, rule);
        }
        if group.len() < MAX_COMPARED {
            group.push(rule);
        }
    }
}

/// Whether `loose` admits everything that `tight` admits, if `tight` applies to at least the same requests.
fn is_stricter(tight: &Rule, loose: &Rule) -> bool {
    is_stricter_by_algorithm(tight, loose) || Envelope::of(tight).fits(loose)
}

/// Compares limits of the same algorithm, which is more precise than comparing envelopes.
fn is_stricter_by_algorithm(tight: &Rule, loose: &Rule) -> bool {
    if tight.algorithm() != loose.algorithm() || tight.requests > loose.requests {
        return false;
    }
    let (long, short) = (tight.window.as_micros(), loose.window.as_micros());
    match tight.algorithm() {
        Algorithm::SlidingLog => long >= short,
        // Aligned windows nest only if one length is a multiple of the other.
        Algorithm::FixedWindow => long.checked_rem(short) == Some(0),
        Algorithm::SlidingCounter => long == short,
        Algorithm::TokenBucket | Algorithm::LeakyBucket => false,
    }
}

/// At most `initial + units / micros · t` in any time t.
struct Envelope {
    initial: u128,
    units: u128,
    micros: u128,
}

impl Envelope {
    fn of(rule: &Rule) -> Self {
        let requests = u128::from(rule.requests);
        let burst = rule.burst.map_or(requests, u128::from).saturating_add(rule.lent().into());
        let (initial, units) = match rule.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => (burst, requests),
            Algorithm::SlidingLog => (requests, requests),
            Algorithm::FixedWindow => (requests.saturating_mul(2), requests),
            // It admits at most twice the limit.
            Algorithm::SlidingCounter => (requests.saturating_mul(2), requests.saturating_mul(2)),
        };
        Self { initial, units, micros: u128::from(rule.window.as_micros()).max(1) }
    }

    /// Whether the rate is at most `requests` per `window`.
    fn is_slower(&self, requests: u128, window: u128) -> bool {
        self.units.saturating_mul(window) <= requests.saturating_mul(self.micros)
    }

    /// Whether `rule` admits everything within the envelope.
    fn fits(&self, rule: &Rule) -> bool {
        let (requests, window) = (u128::from(rule.requests), u128::from(rule.window.as_micros()));
        let own = rule.burst.map_or(requests, u128::from);
        // initial · times + units · window / micros ≤ requests, without dividing.
        let within = |times: u128| {
            let spent = self.initial.saturating_mul(times).saturating_mul(self.micros);
            spent.saturating_add(self.units.saturating_mul(window)) <= requests.saturating_mul(self.micros)
        };
        match rule.algorithm() {
            // What is borrowed slows the refill, so only its own burst counts.
            Algorithm::TokenBucket => self.initial <= own && self.is_slower(requests, window),
            // The last request of a burst must not wait longer than `max_wait`.
            Algorithm::LeakyBucket => {
                let last = self.initial.saturating_sub(1).saturating_mul(window);
                let waits = requests.saturating_mul(rule.longest_wait().as_micros().into());
                self.initial <= own && last <= waits && self.is_slower(requests, window)
            }
            Algorithm::SlidingLog | Algorithm::FixedWindow => within(1),
            // Its estimate over two windows is at most twice the initial burst.
            Algorithm::SlidingCounter => within(2),
        }
    }
}

#[cfg(test)]
mod tests;
