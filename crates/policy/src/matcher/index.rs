//! An index that visits every pattern that matches a path.
//!
//! [`Endpoints`](crate::Endpoints) finds the most specific pattern. Rules and routes need all matches: all matching rules
//! apply, and the first matching route wins.

use std::convert::Infallible;

use crate::endpoints::{EndpointPattern, PathTrie};

/// A multimap from path patterns to numbers.
#[derive(Debug, Default)]
pub(super) struct PathIndex(PathTrie<Vec<u32>>);

impl PathIndex {
    /// Adds `value` at the path of `pattern`.
    pub(super) fn insert(&mut self, pattern: &EndpointPattern, value: u32) {
        self.0.value_mut(pattern.segments()).push(value);
    }

    /// Calls `found` with every value whose pattern matches `path`, in no particular order. A value with several patterns
    /// may be visited more than once.
    pub(super) fn visit(&self, path: &str, found: &mut impl FnMut(u32)) {
        self.0.find_map(path, &mut |values| {
            for value in values {
                found(*value);
            }
            None::<Infallible>
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visit_reports_every_matching_pattern() {
        let patterns = ["/**", "/a", "/a/*", "/a/{x}/**", "/a/b", "/", "/*/b/c"];
        let mut index = PathIndex::default();
        for (value, pattern) in (0..).zip(patterns) {
            index.insert(&EndpointPattern::parse(pattern).unwrap(), value);
        }
        let visited = |path: &str| {
            let mut found = Vec::new();
            index.visit(path, &mut |value| found.push(value));
            found.sort_unstable();
            found
        };
        assert_eq!(visited("/"), [0, 5]);
        assert_eq!(visited("/a/"), [0, 1]);
        assert_eq!(visited("/a/b"), [0, 2, 3, 4]);
        assert_eq!(visited("/a/b/c"), [0, 3, 6]);
        assert_eq!(visited("/x"), [0]);
        assert!(visited("*").is_empty());
    }
}
