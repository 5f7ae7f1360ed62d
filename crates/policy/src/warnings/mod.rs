//! What can be used but is hardly meant.

mod identity;
mod redundant;
mod unreachable;
mod waits;

use ipnet::IpNet;
use tidegate_core::{Algorithm, RuleId};

use crate::compile::Marks;
use crate::plan::Plan;
use crate::raw::{Finding, Mark, Report};
use crate::render::quote;

/// Everything doubtful about `plan`.
pub(crate) fn find(plan: &Plan, marks: &Marks, report: &mut Report<'_>) {
    tiers(plan, marks, report);
    tenant(plan, marks, report);
    everybody(plan, marks, report);
    fixed_window_alone(plan, marks, report);
    identity::find(plan, marks, report);
    waits::find(plan, marks, report);
    unreachable::find(plan, marks, report);
    redundant::find(plan, marks, report);
}

impl Marks {
    fn rule(&self, id: RuleId) -> Mark {
        self.rules.get(&id).copied().unwrap_or_default()
    }
}

fn tiers(plan: &Plan, marks: &Marks, report: &mut Report<'_>) {
    let (source, limits) = (&plan.clients.tiers, &plan.rate_limits);
    if !limits.tiers.is_empty() && source.file.is_none() && source.default.is_none() {
        let finding =
            Finding::warning(marks.tiers, "no client has a tier, so no limit of a tier ever applies");
        report.push(finding.hint("say who has which: `clients: { tiers: { file: keys.csv } }`"));
    }
    let default_tier = source.default.and_then(|index| limits.tiers.get(index));
    if let (Some(tier), Some(default)) = (default_tier, &limits.default) {
        let what = format!("`default` never applies: everybody has a tier, at least {}", quote(&tier.name));
        let finding = Finding::warning(marks.rule(default.id), what);
        report.push(finding.hint("remove `default`, or `clients.tiers.default`"));
    }
}

fn tenant(plan: &Plan, marks: &Marks, report: &mut Report<'_>) {
    let Some(rule) = &plan.rate_limits.tenant else { return };
    if plan.clients.tenant.is_none() && plan.clients.tiers.file.is_none() {
        let finding = Finding::warning(
            marks.rule(rule.id),
            "no request has a tenant, so this limit counts each client",
        );
        report.push(finding.hint("say where it stands: `clients: { tenant: { header: X-Tenant } }`"));
    }
}

/// Networks that hold everybody.
fn everybody(plan: &Plan, marks: &Marks, report: &mut Report<'_>) {
    let all = |network: &IpNet| network.prefix_len() == 0;
    for (network, mark) in plan.clients.trusted_proxies.iter().zip(&marks.trusted_proxies) {
        if all(network) {
            let what = format!("`{network}` trusts everybody: each client can choose its own address");
            report.push(Finding::warning(*mark, what).hint("name the addresses of your own proxies"));
        }
    }
    for (network, mark) in plan.clients.exempt.networks.iter().zip(&marks.exempt_networks) {
        if all(network) {
            let what = format!("`{network}` exempts everybody: no limit ever applies");
            report.push(Finding::warning(*mark, what).hint("name the addresses of your own services"));
        }
    }
    if let Some(network) = plan.bans.iter().find(|network| all(network)) {
        let what = format!("`{network}` bans everybody: no request ever passes");
        report.push(Finding::warning(marks.bans, what).hint("name the networks that do harm"));
    }
}

fn fixed_window_alone(plan: &Plan, marks: &Marks, report: &mut Report<'_>) {
    if plan.rate_limits.concurrent.iter().any(|rule| rule.mode.can_reject()) {
        return;
    }
    let Some(first) = plan.rate_limits.iter().next() else {
        let finding = Finding::warning(marks.rate_limits, "the policy limits nothing");
        report.push(finding.hint("add `default: { requests: 100, window: 60 }` to `rate_limits`"));
        return;
    };
    let mut refusing = plan.rate_limits.iter().filter(|rule| rule.mode.can_reject());
    let Some(first) = refusing.next() else {
        let finding =
            Finding::warning(marks.rule(first.id), "every limit is in shadow: nothing is ever refused");
        report.push(finding.hint("when its figures look right, enforce one: `mode: { canary: 10% }`"));
        return;
    };
    let fixed = |algorithm| algorithm == Algorithm::FixedWindow;
    if fixed(first.algorithm()) && refusing.all(|rule| fixed(rule.algorithm())) {
        let what = "`fixed_window` is the only protection: up to twice the limit passes across a boundary";
        let finding = Finding::warning(marks.rule(first.id), what);
        report.push(finding.hint("use `sliding_window_counter`, or add a limit of another algorithm"));
    }
}
