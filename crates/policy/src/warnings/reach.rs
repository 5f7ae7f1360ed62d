//! Rules that no request reaches, and routes that no rule covers.

use std::collections::HashMap;

use crate::compile::Marks;
use crate::plan::{PathPattern, Plan, Segment};
use crate::raw::{Finding, Report};
use crate::render::quote;

pub(super) fn find(plan: &Plan, marks: &Marks, report: &mut Report<'_>) {
    if plan.routes.is_empty() {
        return;
    }
    unreachable(plan, marks, report);
    unlimited_routes(plan, marks, report);
}

/// Rules at paths that no route takes.
fn unreachable(plan: &Plan, marks: &Marks, report: &mut Report<'_>) {
    let routes = Patterns::new(plan.routes.iter().map(|route| &route.path));
    let endpoints = plan.rate_limits.endpoints.iter();
    let places = endpoints.map(|endpoint| (&endpoint.rule, std::slice::from_ref(&endpoint.path)));
    let custom = plan.rate_limits.rules.iter().map(|custom| (&custom.rule, custom.matches.paths.as_slice()));
    for (rule, paths) in places.chain(custom) {
        if !paths.is_empty() && !paths.iter().any(|path| routes.meet(path)) {
            let what = format!("{} can never match: no route takes its path", quote(&rule.name));
            let finding = Finding::warning(marks.rule(rule.id), what);
            report.push(finding.hint("correct the path, or add a route for it"));
        }
    }
}

/// Routes whose requests meet no limit at all.
fn unlimited_routes(plan: &Plan, marks: &Marks, report: &mut Report<'_>) {
    let limits = &plan.rate_limits;
    let default_tier = plan.clients.tiers.default.and_then(|index| limits.tiers.get(index));
    let everywhere = limits.global.is_some()
        || default_tier.map_or(limits.default.is_some(), |tier| tier.rule.is_some())
        || limits.rules.iter().any(|custom| custom.matches.paths.is_empty());
    if everywhere {
        return;
    }
    let custom = limits.rules.iter().flat_map(|custom| &custom.matches.paths);
    let limited = Patterns::new(limits.endpoints.iter().map(|endpoint| &endpoint.path).chain(custom));
    for (route, mark) in plan.routes.iter().zip(&marks.routes) {
        if !limited.meet(&route.path) {
            let finding =
                Finding::warning(*mark, format!("the route {} has no limit", quote(route.path.as_str())));
            report.push(finding.hint("add `rate_limits.default`, or an endpoint below it"));
        }
    }
}

/// Patterns by their first segment, so that meeting them does not mean trying all.
struct Patterns<'a> {
    by_first: HashMap<&'a str, Vec<&'a PathPattern>>,
    /// Those that begin with no literal.
    anywhere: Vec<&'a PathPattern>,
    everything: bool,
}

impl<'a> Patterns<'a> {
    fn new(patterns: impl Iterator<Item = &'a PathPattern>) -> Self {
        let mut all = Self { by_first: HashMap::new(), anywhere: Vec::new(), everything: false };
        for pattern in patterns {
            all.everything |= pattern.is_everything();
            match pattern.segments().next() {
                Some(Segment::Literal(first)) => all.by_first.entry(first).or_default().push(pattern),
                _ => all.anywhere.push(pattern),
            }
        }
        all
    }

    /// Whether one of them meets `path`.
    fn meet(&self, path: &PathPattern) -> bool {
        if self.everything || self.anywhere.iter().any(|pattern| pattern.meets(path)) {
            return true;
        }
        match path.segments().next() {
            Some(Segment::Literal(first)) => {
                self.by_first.get(first).is_some_and(|some| some.iter().any(|pattern| pattern.meets(path)))
            }
            _ => self.by_first.values().flatten().any(|pattern| pattern.meets(path)),
        }
    }
}
