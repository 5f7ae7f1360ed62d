//! Everything whose path fits, however much there is.
//!
//! [`Endpoints`](crate::Endpoints) finds the most specific pattern; rules all apply, and of routes the first counts, so
//! here every pattern that fits is visited.

use std::convert::Infallible;

use crate::endpoints::{EndpointPattern, PathTrie};

/// Numbers by path pattern.
#[derive(Debug, Default)]
pub(super) struct PathIndex(PathTrie<Vec<u32>>);

impl PathIndex {
    /// Adds `value` at the path of `pattern`.
    pub(super) fn insert(&mut self, pattern: &EndpointPattern, value: u32) {
        self.0.value_mut(pattern.segments()).push(value);
    }

    /// Hands every value whose pattern takes `path` to `found`, in no order; a value with several patterns may come
    /// several times.
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
    fn every_pattern_that_fits_is_visited() {
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
