//! Everything whose path fits, however much there is.
//!
//! [`Endpoints`](crate::Endpoints) finds the most specific pattern; rules all apply, and of routes the first counts, so
//! here every pattern that fits is visited. It is the same tree of segments: a visit costs about as many lookups as
//! the path has segments, not as many as there are patterns.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::endpoints::{EndpointPattern, Segment};

/// Numbers by path pattern.
#[derive(Debug)]
pub(super) struct PathIndex {
    /// The first is the root.
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    literals: HashMap<Box<str>, usize, RandomState>,
    one: Option<usize>,
    end: Vec<u32>,
    rest: Vec<u32>,
}

impl Default for PathIndex {
    fn default() -> Self {
        Self { nodes: vec![Node::default()] }
    }
}

impl PathIndex {
    /// Adds `value` at the path of `pattern`.
    pub(super) fn insert(&mut self, pattern: &EndpointPattern, value: u32) {
        let mut at = 0;
        for segment in pattern.segments() {
            let fresh = self.nodes.len();
            let node = &mut self.nodes[at];
            let child = match segment {
                Segment::Literal(text) => *node.literals.entry(text.clone()).or_insert(fresh),
                Segment::One(_) => *node.one.get_or_insert(fresh),
                Segment::Rest => return node.rest.push(value),
            };
            if child == fresh {
                self.nodes.push(Node::default());
            }
            at = child;
        }
        self.nodes[at].end.push(value);
    }

    /// Hands every value whose pattern takes `path` to `found`, in no order; a value with several patterns may come
    /// several times.
    pub(super) fn visit(&self, path: &str, found: &mut impl FnMut(u32)) {
        let Some(relative) = path.strip_prefix('/') else { return };
        let relative = relative.strip_suffix('/').unwrap_or(relative);
        self.step(0, if relative.is_empty() { None } else { Some(relative) }, found);
    }

    /// The depth is that of the patterns, never that of the path.
    fn step(&self, node: usize, segments: Option<&str>, found: &mut impl FnMut(u32)) {
        let Some(node) = self.nodes.get(node) else { return };
        node.rest.iter().for_each(|value| found(*value));
        let Some(segments) = segments else {
            return node.end.iter().for_each(|value| found(*value));
        };
        let (first, others) = match segments.split_once('/') {
            Some((first, others)) => (first, Some(others)),
            None => (segments, None),
        };
        if !node.literals.is_empty()
            && let Some(&child) = node.literals.get(first)
        {
            self.step(child, others, found);
        }
        if let Some(child) = node.one {
            self.step(child, others, found);
        }
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
