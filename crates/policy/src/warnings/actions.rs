//! Warns about actions without a limit that rejects: nothing bounds the load then.

use tidegate_core::ActionKind;

use crate::compile::WarningTargets;
use crate::plan::{Mode, Plan, Rule, RuleMatch};
use crate::raw::{Finding, ProblemReport};
use crate::render::quote;

pub(super) fn find(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let limits = &plan.rate_limits;
    if let Some(node) = targets.cache
        && !limits.iter().any(|rule| rule.on_exceed.kind() == ActionKind::Cached)
    {
        let finding = Finding::warning(node, "`cache` has no effect: no limit has the action `cached`");
        report.push(finding.hint("add `on_exceed: { cached: { for: 60s } }` to a limit, or remove `cache`"));
    }
    let degrades =
        limits.iter().filter(|rule| rule.on_exceed.kind() == ActionKind::Degrade && rule.mode.can_reject());
    for rule in degrades.filter(|rule| !has_limit_above(rule, plan)) {
        let name = quote(&rule.name);
        let what = format!("no limit rejects requests above {name}, so any number of them is degraded");
        let finding = Finding::warning(targets.rule(rule.id), what);
        report.push(finding.hint("add a higher limit that rejects, for example `global`"));
    }
}

/// Whether another limit rejects requests that this one degrades: one for all requests, or one for the same requests.
fn has_limit_above(rule: &Rule, plan: &Plan) -> bool {
    let limits = &plan.rate_limits;
    let rejects = |other: &Rule| other.id != rule.id && other.mode == Mode::Enforce && other.can_reject();
    let everywhere = [&limits.global, &limits.tenant, &limits.default];
    let place = limits.rules.iter().find(|custom| custom.rule.id == rule.id).map(|custom| &custom.matches);
    let covers = |matches: &RuleMatch| *matches == RuleMatch::default() || Some(matches) == place;
    everywhere.into_iter().flatten().any(rejects)
        || limits.rules.iter().any(|custom| rejects(&custom.rule) && covers(&custom.matches))
        || limits.concurrent.iter().any(|other| other.mode.can_reject() && covers(&other.matches))
}
