//! What can be used but is hardly meant.

mod identity;
mod redundant;
mod unreachable;
mod waits;

use ipnet::IpNet;
use tidegate_core::{Algorithm, RuleId};

use crate::compile::WarningTargets;
use crate::plan::Plan;
use crate::raw::{Finding, NodeRef, ProblemReport};
use crate::render::quote;

/// Everything doubtful about `plan`.
pub(crate) fn find(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    tiers(plan, targets, report);
    tenant(plan, targets, report);
    everybody(plan, targets, report);
    fixed_window_alone(plan, targets, report);
    identity::find(plan, targets, report);
    waits::find(plan, targets, report);
    unreachable::find(plan, targets, report);
    redundant::find(plan, targets, report);
}

impl WarningTargets {
    fn rule(&self, id: RuleId) -> NodeRef {
        self.rules.get(&id).copied().unwrap_or_default()
    }
}

fn tiers(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let (source, limits) = (&plan.clients.tiers, &plan.rate_limits);
    if !limits.tiers.is_empty() && source.file.is_none() && source.default.is_none() {
        let finding =
            Finding::warning(targets.tiers, "no client has a tier, so no limit of a tier ever applies");
        report.push(finding.hint("say who has which: `clients: { tiers: { file: keys.csv } }`"));
    }
    let default_tier = source.default.and_then(|index| limits.tiers.get(index));
    if let (Some(tier), Some(default)) = (default_tier, &limits.default) {
        let what = format!("`default` never applies: everybody has a tier, at least {}", quote(&tier.name));
        let finding = Finding::warning(targets.rule(default.id), what);
        report.push(finding.hint("remove `default`, or `clients.tiers.default`"));
    }
}

fn tenant(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let Some(rule) = &plan.rate_limits.tenant else { return };
    if plan.clients.tenant.is_none() && plan.clients.tiers.file.is_none() {
        let finding = Finding::warning(
            targets.rule(rule.id),
            "no request has a tenant, so this limit counts each client",
        );
        report.push(finding.hint("say where it stands: `clients: { tenant: { header: X-Tenant } }`"));
    }
}

/// Networks that hold everybody.
fn everybody(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let all = |network: &IpNet| network.prefix_len() == 0;
    for (network, target) in plan.clients.trusted_proxies.iter().zip(&targets.trusted_proxies) {
        if all(network) {
            let what = format!("`{network}` trusts everybody: each client can choose its own address");
            report.push(Finding::warning(*target, what).hint("name the addresses of your own proxies"));
        }
    }
    for (network, target) in plan.clients.exempt.networks.iter().zip(&targets.exempt_networks) {
        if all(network) {
            let what = format!("`{network}` exempts everybody: no limit ever applies");
            report.push(Finding::warning(*target, what).hint("name the addresses of your own services"));
        }
    }
    if let Some(network) = plan.bans.iter().find(|network| all(network)) {
        let what = format!("`{network}` bans everybody: no request ever passes");
        report.push(Finding::warning(targets.bans, what).hint("name the networks that do harm"));
    }
}

fn fixed_window_alone(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    if plan.rate_limits.concurrent.iter().any(|rule| rule.mode.can_refuse()) {
        return;
    }
    let Some(first) = plan.rate_limits.iter().next() else {
        let finding = Finding::warning(targets.rate_limits, "the policy limits nothing");
        report.push(finding.hint("add `default: { requests: 100, window: 60 }` to `rate_limits`"));
        return;
    };
    let mut refusing = plan.rate_limits.iter().filter(|rule| rule.mode.can_refuse());
    let Some(first) = refusing.next() else {
        let finding =
            Finding::warning(targets.rule(first.id), "every limit is in shadow: nothing is ever refused");
        report.push(finding.hint("when its figures look right, enforce one: `mode: { canary: 10% }`"));
        return;
    };
    let fixed = |algorithm| algorithm == Algorithm::FixedWindow;
    if fixed(first.algorithm()) && refusing.all(|rule| fixed(rule.algorithm())) {
        let what = "`fixed_window` is the only protection: up to twice the limit passes across a boundary";
        let finding = Finding::warning(targets.rule(first.id), what);
        report.push(finding.hint("use `sliding_window_counter`, or add a limit of another algorithm"));
    }
}
