//! Limits by path, for every reading of a path.
//!
//! The path is looked up in the patterns as written, and its folded reading in the folded patterns. So `/LOGIN` matches
//! the limit of `/login` and vice versa. If folding changes no pattern, which is the usual case, one table serves both,
//! and a path with one reading is looked up once.

use crate::endpoints::{EndpointPattern, Endpoints};
use crate::matcher::index::PathIndex;
use crate::path::Readings;
use crate::plan::{PathCase, Plan};

/// Endpoints and rules by path.
#[derive(Debug)]
pub(super) struct PathTables {
    exact: PathTable,
    /// The folded patterns, if they differ; one table per path case.
    insensitive: Option<PathTable>,
    sensitive: Option<PathTable>,
}

/// Endpoints and rules by pattern, either as written or folded.
#[derive(Debug, Default)]
pub(super) struct PathTable {
    /// Indexes of endpoints.
    pub(super) endpoints: Endpoints<usize>,
    /// Indexes of rules with paths.
    pub(super) rules: PathIndex,
}

impl PathTables {
    pub(super) fn new(plan: &Plan) -> Self {
        let folded = |case: PathCase| {
            let differs = |pattern: &EndpointPattern| pattern.folded(case) != *pattern;
            let is_needed = plan.has_path_case(case) && patterns(plan).any(differs);
            is_needed.then(|| PathTable::new(plan, |pattern| pattern.folded(case)))
        };
        Self {
            exact: PathTable::new(plan, EndpointPattern::clone),
            insensitive: folded(PathCase::Insensitive),
            sensitive: folded(PathCase::Sensitive),
        }
    }

    /// Calls `look` with each pair of a table and a reading of `path` to look up in it, the path itself first.
    pub(super) fn each(
        &self,
        path: &str,
        case: PathCase,
        readings: &Readings,
        mut look: impl FnMut(&PathTable, &str),
    ) {
        look(&self.exact, path);
        let folded = match case {
            PathCase::Insensitive => self.insensitive.as_ref(),
            PathCase::Sensitive => self.sensitive.as_ref(),
        };
        match folded {
            None if readings.is_single() => {}
            None => readings.others(path).for_each(|reading| look(&self.exact, reading)),
            Some(folded) => {
                readings.decoded().into_iter().for_each(|reading| look(&self.exact, reading));
                readings.folded(path).for_each(|reading| look(folded, reading));
            }
        }
    }
}

/// The patterns of all limits.
fn patterns(plan: &Plan) -> impl Iterator<Item = &EndpointPattern> {
    let limits = &plan.rate_limits;
    let rules = limits.rules.iter().map(|custom| &custom.matches);
    let matches = rules.chain(limits.concurrent.iter().map(|rule| &rule.matches));
    let endpoints = limits.endpoints.iter().map(|endpoint| &endpoint.pattern);
    endpoints.chain(matches.flat_map(|matches| &matches.paths))
}

impl PathTable {
    fn new(plan: &Plan, transform: impl Fn(&EndpointPattern) -> EndpointPattern) -> Self {
        let limits = &plan.rate_limits;
        let mut table = Self::default();
        for (at, endpoint) in limits.endpoints.iter().enumerate() {
            // A plan has no duplicate endpoints, folded or not.
            let _ = table.endpoints.insert(&transform(&endpoint.pattern), at);
        }
        // After the others, so that a pattern for the rest of a path has precedence.
        for (at, endpoint) in limits.endpoints.iter().enumerate() {
            if let Some(pattern) = endpoint.pattern.behind_script() {
                let _ = table.endpoints.insert(&transform(&pattern), at);
            }
        }
        // Concurrency rules are numbered after the rate rules.
        let concurrent = limits.concurrent.iter().map(|rule| &rule.matches);
        for (at, matches) in (0..).zip(limits.rules.iter().map(|custom| &custom.matches).chain(concurrent)) {
            for path in &matches.paths {
                table.rules.insert(&transform(path), at);
                if let Some(pattern) = path.behind_script() {
                    table.rules.insert(&transform(&pattern), at);
                }
            }
        }
        table
    }
}
