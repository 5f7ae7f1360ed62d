//! Warnings: what is valid but probably mistaken.

mod actions;
mod identity;
mod redundant;
mod store;
mod unreachable;
mod waits;

use ipnet::IpNet;
use tidegate_core::{Algorithm, RuleId};

use crate::compile::WarningTargets;
use crate::plan::{AddressRanges, Plan};
use crate::raw::{Finding, NodeRef, ProblemReport};
use crate::render::quote;

/// Reports all warnings about `plan`.
pub(crate) fn find(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    all_addresses(plan, targets, report);
    allowed_networks(plan, targets, report);
    fixed_window_alone(plan, targets, report);
    actions::find(plan, targets, report);
    identity::find(plan, targets, report);
    waits::find(plan, targets, report);
    store::find(plan, targets, report);
    // Without routes, callers name the rules and the identities of their clients.
    if !plan.routes.is_empty() {
        tiers(plan, targets, report);
        tenant(plan, targets, report);
        unreachable::find(plan, targets, report);
        redundant::find(plan, targets, report);
    }
}

impl WarningTargets {
    pub(crate) fn rule(&self, id: RuleId) -> NodeRef {
        self.rules.get(&id).copied().unwrap_or_default()
    }
}

fn tiers(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let (source, limits) = (&plan.clients.tiers, &plan.rate_limits);
    if source.sent.is_some() && limits.tiers.is_empty() {
        let what = "no tier has this name: `rate_limits.tiers` is empty, so it assigns no tier";
        let hint = "define the tiers: `rate_limits: { tiers: { premium: { requests: 1000, window: 1m } } }`";
        report.push(Finding::warning(targets.sent_tier, what).hint(hint));
    }
    if !limits.tiers.is_empty() && !source.assigns_tiers() {
        let finding = Finding::warning(
            targets.tiers,
            "the limits in `tiers` never apply: no client is assigned a tier",
        );
        report.push(finding.hint("assign tiers to API keys: `clients: { tiers: { file: keys.csv } }`"));
    }
    let default_tier = source.default.and_then(|index| limits.tiers.get(index));
    if let (Some(tier), Some(default)) = (default_tier, &limits.default) {
        let what =
            format!("`default` never applies: clients without a tier have the tier {}", quote(&tier.name));
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
        report.push(finding.hint("set how to find the tenant: `clients: { tenant: { header: X-Tenant } }`"));
    }
}

/// Networks that contain every address.
fn all_addresses(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let all = |network: &IpNet| network.prefix_len() == 0;
    for (network, target) in plan.clients.trusted_proxies.iter().zip(&targets.trusted_proxies) {
        if all(network) {
            let what = format!("`{network}` trusts every address: each client can claim any address");
            report.push(Finding::warning(*target, what).hint("list only the addresses of your own proxies"));
        }
    }
    for (network, target) in plan.clients.exempt.networks.iter().zip(&targets.exempt_networks) {
        if all(network) {
            let what = format!("`{network}` exempts every client: no limit ever applies");
            report.push(Finding::warning(*target, what).hint("list only the addresses of your own services"));
        }
    }
    if let Some(network) = plan.bans.iter().find(|network| all(network)) {
        let what = format!("`{network}` bans every client: all requests are rejected");
        report.push(Finding::warning(targets.bans, what).hint("list only the networks to ban"));
    }
}

/// `allow` serves no network, or all.
fn allowed_networks(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let Some(allow) = &plan.allow else { return };
    if let Some(network) = allow.iter().find(|network| network.prefix_len() == 0) {
        let what = format!("`{network}` allows every address of its family");
        let hint = "list only the networks to serve, or remove `allow`";
        report.push(Finding::warning(targets.allow, what).hint(hint));
    }
    let banned = AddressRanges::of(&plan.bans);
    if allow.iter().all(|network| banned.contain(network)) {
        let what = "`allow` excludes every client: all requests are rejected";
        let hint = "list the networks to serve, or remove `allow` to serve all";
        report.push(Finding::warning(targets.allow, what).hint(hint));
    }
    for (network, target) in plan.clients.exempt.networks.iter().zip(&targets.exempt_networks) {
        let serves = |allowed: &&IpNet| allowed.contains(network) || network.contains(*allowed);
        if allow.iter().find(serves).is_none() {
            let what = format!("`{network}` is exempt, but outside of `allow`: its requests are rejected");
            report.push(Finding::warning(*target, what).hint("add it to `allow`, or remove the exemption"));
        }
    }
}

fn fixed_window_alone(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    if plan.rate_limits.concurrent.iter().any(|rule| rule.mode.can_reject()) {
        return;
    }
    let Some(first) = plan.rate_limits.iter().next() else {
        if plan.routes.is_empty() && plan.service.resp.is_some() {
            // Limits can come with requests.
            return;
        }
        let finding = Finding::warning(targets.rate_limits, "the policy has no limits");
        report.push(finding.hint("add `default: { requests: 100, window: 60 }` to `rate_limits`"));
        return;
    };
    let mut enforced = plan.rate_limits.iter().filter(|rule| rule.can_reject());
    let Some(first) = enforced.next() else {
        let finding = Finding::warning(
            targets.rule(first.id),
            "every limit has `mode: shadow`: no request is ever rejected",
        );
        report.push(finding.hint("to enforce a limit for some clients, set `mode: { canary: 10% }`"));
        return;
    };
    let fixed = |algorithm| algorithm == Algorithm::FixedWindow;
    if fixed(first.algorithm()) && enforced.all(|rule| fixed(rule.algorithm())) {
        let what =
            "all limits use `fixed_window`: up to twice the limit is admitted around a window boundary";
        let finding = Finding::warning(targets.rule(first.id), what);
        report.push(finding.hint("use `sliding_window_counter`, or add a limit with another algorithm"));
    }
}
