//! Rules that no request reaches, and routes that no rule covers.

use crate::compile::WarningTargets;
use crate::endpoints::{EndpointPattern, PathTrie};
use crate::plan::{Plan, Rule, loosest_path_case};
use crate::raw::{Finding, ProblemReport};
use crate::render::quote;

/// Enough for 100,000 patterns without many wildcards; after them a doubt counts as met.
const MAX_STEPS: usize = 10_000_000;

pub(super) fn find(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    if plan.routes.is_empty() {
        return;
    }
    unreachable(plan, targets, report);
    unlimited_routes(plan, targets, report);
}

/// Rules at paths that no route takes.
fn unreachable(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    // Limits ignore case where a route says so; then a difference in case is none.
    let fold = folding(plan);
    let folded: Vec<_> = plan.routes.iter().map(|route| fold(&route.path)).collect();
    let mut routes = Patterns::new(folded.iter());
    let endpoints = plan.rate_limits.endpoints.iter();
    let places = endpoints.map(|endpoint| (&endpoint.rule, std::slice::from_ref(&endpoint.pattern)));
    let custom = plan.rate_limits.rules.iter().map(|custom| (&custom.rule, custom.matches.paths.as_slice()));
    let named = places.chain(custom).map(|(rule, paths)| (&rule.name, rule.id, paths));
    let concurrency_rules = plan.rate_limits.concurrent.iter();
    let concurrency_rules =
        concurrency_rules.map(|rule| (&rule.name, rule.id, rule.matches.paths.as_slice()));
    for (name, id, paths) in named.chain(concurrency_rules) {
        if !paths.is_empty() && !paths.iter().any(|path| routes.meet(&fold(path))) {
            let what = format!("{} can never match: no route takes its path", quote(name));
            let finding = Finding::warning(targets.rule(id), what);
            report.push(finding.hint("correct the path, or add a route for it"));
        }
    }
}

/// Routes whose requests meet no limit at all.
fn unlimited_routes(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let limits = &plan.rate_limits;
    let clients = &plan.clients;
    let has_tiers = clients.tiers.file.is_some() || clients.tiers.default.is_some();
    // What only watches limits nothing.
    let refuses = |rule: &Option<Rule>| rule.as_ref().is_some_and(|rule| rule.mode.can_refuse());
    let rules = || limits.rules.iter().filter(|custom| custom.rule.mode.can_refuse());
    let concurrency_rules = || limits.concurrent.iter().filter(|rule| rule.mode.can_refuse());
    let everywhere = [&limits.global, &limits.default, &limits.tenant].into_iter().any(refuses)
        || (has_tiers && limits.tiers.iter().any(|tier| refuses(&tier.rule)))
        || rules().any(|custom| custom.matches.paths.is_empty())
        || concurrency_rules().any(|rule| rule.matches.paths.is_empty());
    if everywhere {
        return;
    }
    let custom = rules().map(|custom| &custom.matches).chain(concurrency_rules().map(|rule| &rule.matches));
    let custom = custom.flat_map(|matches| &matches.paths);
    let endpoints = limits.endpoints.iter().filter(|endpoint| endpoint.rule.mode.can_refuse());
    let fold = folding(plan);
    let folded: Vec<_> = endpoints.map(|endpoint| &endpoint.pattern).chain(custom).map(&fold).collect();
    let mut limited = Patterns::new(folded.iter());
    for (route, target) in plan.routes.iter().zip(&targets.routes) {
        if !limited.meet(&fold(&route.path)) {
            let finding = Finding::warning(
                *target,
                format!("the route {} has no limit", quote(&route.path.to_string())),
            );
            report.push(finding.hint("add `rate_limits.default`, or an endpoint below it"));
        }
    }
}

/// How patterns are compared: as requests are matched with them.
fn folding(plan: &Plan) -> impl Fn(&EndpointPattern) -> EndpointPattern {
    let case = loosest_path_case(plan.http, &plan.routes);
    move |pattern| pattern.folded(case)
}

/// Patterns by their segments, so that meeting them does not mean trying all.
struct Patterns {
    paths: PathTrie<bool>,
    /// What is left of the steps; patterns full of wildcards would otherwise try every branch again and again.
    steps: usize,
}

impl Patterns {
    fn new<'p>(patterns: impl Iterator<Item = &'p EndpointPattern>) -> Self {
        let mut paths = PathTrie::default();
        patterns.for_each(|pattern| *paths.value_mut(pattern.segments()) = true);
        Self { paths, steps: MAX_STEPS }
    }

    /// Whether one of them meets `path`, or it took too long to see that none does.
    fn meet(&mut self, path: &EndpointPattern) -> bool {
        self.paths.meets(path.segments(), &mut self.steps)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::endpoints::Segment;

    /// Whether some path is taken by both, segment by segment.
    fn meets(one: &EndpointPattern, other: &EndpointPattern) -> bool {
        let (mut one, mut other) = (one.segments().iter(), other.segments().iter());
        loop {
            match (one.next(), other.next()) {
                // The rest may be empty.
                (Some(Segment::Rest), _) | (_, Some(Segment::Rest)) | (None, None) => return true,
                (Some(Segment::Literal(a)), Some(Segment::Literal(b))) if a != b => return false,
                (Some(_), Some(_)) => {}
                (None, Some(_)) | (Some(_), None) => return false,
            }
        }
    }

    #[test]
    fn patterns_meet_where_a_path_fits_both() {
        let pattern = |text| EndpointPattern::parse(text).unwrap();
        let meet = |a, b| Patterns::new([pattern(a)].iter()).meet(&pattern(b));
        for (a, b) in
            [("/a/*", "/a/b"), ("/**", "/x/y"), ("/a/**", "/a/b/c"), ("/{x}/b", "/a/{y}"), ("/a/**", "/a")]
        {
            assert!(meet(a, b) && meet(b, a), "{a} {b}");
        }
        for (a, b) in [("/a", "/b"), ("/a/*", "/a/b/c"), ("/a/b", "/a")] {
            assert!(!meet(a, b) && !meet(b, a), "{a} {b}");
        }
    }

    fn patterns() -> impl Strategy<Value = EndpointPattern> {
        let segment = prop::sample::select(vec!["a", "b", "*", "{x}", ""]);
        let rest = prop::sample::select(vec!["", "/**"]);
        (prop::collection::vec(segment, 1..4), rest).prop_filter_map("no pattern", |(segments, rest)| {
            EndpointPattern::parse(&format!("/{}{rest}", segments.join("/"))).ok()
        })
    }

    proptest! {
        #[test]
        fn many_patterns_meet_what_one_of_them_meets(
            all in prop::collection::vec(patterns(), 1..6),
            path in patterns(),
        ) {
            let one_by_one = all.iter().any(|pattern| meets(pattern, &path));
            prop_assert_eq!(Patterns::new(all.iter()).meet(&path), one_by_one);
        }
    }
}
