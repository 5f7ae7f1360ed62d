//! Warns about settings of the shared store.

use tidegate_core::{Algorithm, Coordination, StoreFailureMode};

use crate::compile::WarningTargets;
use crate::plan::{Plan, RuleSharing};
use crate::raw::{Finding, ProblemReport};

pub(super) fn find(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let store = &plan.store;
    if store.url.is_some() && store.secret.is_none() {
        let what = "without `secret_file`, anyone who can read Redis can test guesses of API keys and users";
        let finding = Finding::warning(targets.store, what);
        report.push(finding.hint(
            "create one with `openssl rand -base64 32 > store.secret`, copy it to every node and add `secret_file: store.secret`",
        ));
    }
    unused(plan, targets, report);
    for rule in plan.rate_limits.iter() {
        let is_static = rule.sharing.is_some_and(|sharing| sharing.coordination == Coordination::Static);
        let has_windows = !matches!(rule.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
        if is_static && has_windows && rule.requests < u64::from(store.nodes.get()) {
            let what = format!(
                "{} requests cannot be divided by {} nodes: each node admits 1 request in a longer window",
                rule.requests, store.nodes
            );
            let finding = Finding::warning(targets.rule(rule.id), what);
            report.push(finding.hint("use `coordination: central` for this limit, or a `token_bucket`"));
        }
    }
}

/// Keys of `store` that no rule uses.
fn unused(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let permits = || plan.rate_limits.concurrent.iter().filter_map(|rule| rule.sharing);
    let any = |uses: &dyn Fn(RuleSharing) -> bool| {
        plan.rate_limits.iter().filter_map(|rule| rule.sharing).chain(permits()).any(uses)
    };
    if plan.rate_limits.iter().next().is_none() && permits().next().is_none() {
        return;
    }
    let mut warn = |key: &str, is_used: bool, what: &str| {
        if let Some(target) = targets.store_keys.get(key).filter(|_| !is_used) {
            let what = format!("`{key}` has no effect: no limit has `{what}`");
            report.push(Finding::warning(*target, what).hint("remove it"));
        }
    };
    warn("sync_interval", any(&|rule| rule.coordination == Coordination::Sync), "coordination: sync");
    let falls_back = |rule: RuleSharing| {
        rule.coordination != Coordination::Static && rule.on_store_failure == StoreFailureMode::Local
    };
    warn("fallback_share", any(&falls_back), "on_store_failure: local");
    let divides = |rule: RuleSharing| rule.coordination == Coordination::Static || falls_back(rule);
    warn("nodes", any(&divides), "coordination: static");
}
