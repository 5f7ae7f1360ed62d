//! Warns about rules that no route reaches, and routes without a limit.

use crate::compile::WarningTargets;
use crate::endpoints::{EndpointPattern, PathTrie, Segment};
use crate::plan::{Plan, Rule, loosest_path_case};
use crate::raw::{Finding, ProblemReport};
use crate::render::quote;

/// The number of search steps: enough for 100,000 patterns with few wildcards. When it is used up, patterns count as
/// overlapping and there is no warning.
const MAX_STEPS: usize = 10_000_000;

pub(super) fn find(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    single_path(plan, targets, report);
    unreachable(plan, targets, report);
    unlimited_routes(plan, targets, report);
}

/// Rules whose paths no route matches.
fn unreachable(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    // Limits ignore case if any route does, so compare the folded patterns.
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
        if !paths.is_empty() && !paths.iter().any(|path| routes.overlaps(&fold(path))) {
            let what = format!("{} never applies: no route matches its path", quote(name));
            let finding = Finding::warning(targets.rule(id), what);
            // The hint of a problem that is only counted is not computed.
            let above = if report.is_full() { None } else { route_above(plan, paths, &fold) };
            report.push(match above {
                Some(route) => finding.hint(not_below(route)),
                None => finding.hint("correct the path, or add a route that matches it"),
            });
        }
    }
}

/// The route that would match one of the paths if it covered the paths below its own.
fn route_above<'p>(
    plan: &'p Plan,
    paths: &[EndpointPattern],
    fold: &impl Fn(&EndpointPattern) -> EndpointPattern,
) -> Option<&'p EndpointPattern> {
    const MOST_COMPARED: usize = 64;
    let mut routes = plan.routes.iter().take(MOST_COMPARED).map(|route| &route.path);
    routes.find(|route| {
        let below = format!("{}/**", route.to_string().trim_end_matches('/'));
        let Ok(below) = EndpointPattern::parse(&below) else { return false };
        let mut below = Patterns::new([fold(&below)].iter());
        paths.iter().any(|path| below.overlaps(&fold(path)))
    })
}

/// A single route that covers one path only.
fn single_path(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let ([route], [target]) = (plan.routes.as_slice(), targets.routes.as_slice()) else { return };
    if route.path.segments().iter().all(|segment| matches!(segment, Segment::Literal(_))) {
        let what = format!(
            "{} is the only path that is forwarded; all others get 404",
            quote(&route.path.to_string())
        );
        report.push(Finding::warning(*target, what).hint(not_below(&route.path)));
    }
}

/// The hint that a route covers no paths below its own.
fn not_below(route: &EndpointPattern) -> String {
    let path = route.to_string();
    let below = path.trim_end_matches('/');
    format!("a route `{path}` does not cover `{below}/x`; write `{below}/**` for all paths below it")
}

/// Routes whose requests have no limit.
fn unlimited_routes(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    let limits = &plan.rate_limits;
    let clients = &plan.clients;
    let has_tiers = clients.tiers.assigns_tiers();
    // Limits in shadow mode do not protect a route.
    let is_enforced = |rule: &Option<Rule>| rule.as_ref().is_some_and(Rule::can_reject);
    let rules = || limits.rules.iter().filter(|custom| custom.rule.can_reject());
    let concurrency_rules = || limits.concurrent.iter().filter(|rule| rule.mode.can_reject());
    let everywhere = [&limits.global, &limits.default, &limits.tenant].into_iter().any(is_enforced)
        || (has_tiers && limits.tiers.iter().any(|tier| is_enforced(&tier.rule)))
        || rules().any(|custom| custom.matches.paths.is_empty())
        || concurrency_rules().any(|rule| rule.matches.paths.is_empty());
    if everywhere {
        return;
    }
    let custom = rules().map(|custom| &custom.matches).chain(concurrency_rules().map(|rule| &rule.matches));
    let custom = custom.flat_map(|matches| &matches.paths);
    let endpoints = limits.endpoints.iter().filter(|endpoint| endpoint.rule.can_reject());
    let fold = folding(plan);
    let folded: Vec<_> = endpoints.map(|endpoint| &endpoint.pattern).chain(custom).map(&fold).collect();
    let mut limited = Patterns::new(folded.iter());
    for (route, target) in plan.routes.iter().zip(&targets.routes) {
        if !limited.overlaps(&fold(&route.path)) {
            let finding = Finding::warning(
                *target,
                format!("the route {} has no limit", quote(&route.path.to_string())),
            );
            report.push(
                finding.hint("add `rate_limits.default`, or an endpoint or rule that matches the route"),
            );
        }
    }
}

/// Returns how patterns are compared: the same way as requests are matched.
fn folding(plan: &Plan) -> impl Fn(&EndpointPattern) -> EndpointPattern {
    let case = loosest_path_case(plan.http, &plan.routes);
    move |pattern| pattern.folded(case)
}

/// A set of patterns, indexed by segment.
struct Patterns {
    paths: PathTrie<bool>,
    /// The remaining search steps; many wildcards would otherwise take exponential time.
    steps: usize,
}

impl Patterns {
    fn new<'p>(patterns: impl Iterator<Item = &'p EndpointPattern>) -> Self {
        let mut paths = PathTrie::default();
        patterns.for_each(|pattern| *paths.value_mut(pattern.segments()) = true);
        Self { paths, steps: MAX_STEPS }
    }

    /// Whether one of the patterns overlaps `path`, or the steps are used up.
    fn overlaps(&mut self, path: &EndpointPattern) -> bool {
        self.paths.overlaps(path.segments(), &mut self.steps)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether a path exists that both patterns match, segment by segment.
    fn overlap(one: &EndpointPattern, other: &EndpointPattern) -> bool {
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
    fn patterns_overlap_if_a_path_matches_both() {
        let pattern = |text| EndpointPattern::parse(text).unwrap();
        let overlaps = |a, b| Patterns::new([pattern(a)].iter()).overlaps(&pattern(b));
        for (a, b) in
            [("/a/*", "/a/b"), ("/**", "/x/y"), ("/a/**", "/a/b/c"), ("/{x}/b", "/a/{y}"), ("/a/**", "/a")]
        {
            assert!(overlaps(a, b) && overlaps(b, a), "{a} {b}");
        }
        for (a, b) in [("/a", "/b"), ("/a/*", "/a/b/c"), ("/a/b", "/a")] {
            assert!(!overlaps(a, b) && !overlaps(b, a), "{a} {b}");
        }
    }

    fn patterns() -> impl Strategy<Value = EndpointPattern> {
        let segment = prop::sample::select(vec!["a", "b", "*", "{x}", ""]);
        let rest = prop::sample::select(vec!["", "/**"]);
        (prop::collection::vec(segment, 1..4), rest).prop_filter_map("invalid pattern", |(segments, rest)| {
            EndpointPattern::parse(&format!("/{}{rest}", segments.join("/"))).ok()
        })
    }

    proptest! {
        #[test]
        fn pattern_set_overlaps_if_one_pattern_overlaps(
            all in prop::collection::vec(patterns(), 1..6),
            path in patterns(),
        ) {
            let one_by_one = all.iter().any(|pattern| overlap(pattern, &path));
            prop_assert_eq!(Patterns::new(all.iter()).overlaps(&path), one_by_one);
        }
    }
}
