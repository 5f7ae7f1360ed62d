//! A trie of path segments.
//!
//! Each node has a hash map of literals. A search visits a node only if all segments before it match, so it costs about
//! one lookup per segment of the path, independent of the number of patterns. It does not allocate.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::Segment;

/// Values by the path of a pattern.
#[derive(Debug, Clone)]
pub(crate) struct PathTrie<T> {
    /// The first is the root.
    nodes: Vec<Node<T>>,
}

#[derive(Debug, Clone, Default)]
struct Node<T> {
    literals: HashMap<Box<str>, usize, RandomState>,
    one: Option<usize>,
    /// For patterns that end here.
    end: T,
    /// For patterns that end here with `**`.
    rest: T,
}

impl<T: Default> Default for PathTrie<T> {
    fn default() -> Self {
        Self { nodes: vec![Node::default()] }
    }
}

impl<T: Default> PathTrie<T> {
    /// The value of the pattern with these segments. Creates missing nodes.
    pub(crate) fn value_mut(&mut self, segments: &[Segment]) -> &mut T {
        let mut at = 0;
        for segment in segments {
            let new = self.nodes.len();
            let node = &mut self.nodes[at];
            let child = match segment {
                Segment::Literal(text) => *node.literals.entry(text.clone()).or_insert(new),
                Segment::One(_) => *node.one.get_or_insert(new),
                Segment::Rest => return &mut self.nodes[at].rest,
            };
            if child == new {
                self.nodes.push(Node::default());
            }
            at = child;
        }
        &mut self.nodes[at].end
    }
}

impl<T> PathTrie<T> {
    /// Calls `look` with the values whose patterns match `path`, the most specific pattern first, and returns its first
    /// result. `path` must be normalised.
    pub(crate) fn find_map<'t, R>(
        &'t self,
        path: &str,
        look: &mut impl FnMut(&'t T) -> Option<R>,
    ) -> Option<R> {
        let relative = path.strip_prefix('/')?;
        let relative = relative.strip_suffix('/').unwrap_or(relative);
        self.search(0, if relative.is_empty() { None } else { Some(relative) }, look)
    }

    /// `segments` is the rest of the path after `node`. The recursion is as deep as the patterns, not as the path.
    fn search<'t, R>(
        &'t self,
        node: usize,
        segments: Option<&str>,
        look: &mut impl FnMut(&'t T) -> Option<R>,
    ) -> Option<R> {
        let node = self.nodes.get(node)?;
        let found = match segments {
            None => look(&node.end),
            // The node has no children, so the path need not be split.
            Some(_) if node.literals.is_empty() && node.one.is_none() => None,
            Some(segments) => {
                let (first, others) = split_segment(segments);
                let literal = node.literals.get(first).and_then(|&child| self.search(child, others, look));
                literal.or_else(|| node.one.and_then(|child| self.search(child, others, look)))
            }
        };
        found.or_else(|| look(&node.rest))
    }
}

/// The first segment of `path`, and the rest if there is one. Segments are short: comparing their bytes one by one takes a third
/// of the instructions of `split_once`.
fn split_segment(path: &str) -> (&str, Option<&str>) {
    let slash = path.bytes().position(|byte| byte == b'/');
    match slash.and_then(|at| Some((path.get(..at)?, path.get(at + 1..)?))) {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    }
}

impl PathTrie<bool> {
    /// Whether some path matches both the pattern of `segments` and a pattern whose value is set. Each visited node uses one
    /// of `steps`; the result is `true` when none are left.
    pub(crate) fn overlaps(&self, segments: &[Segment], steps: &mut usize) -> bool {
        let mut open = vec![(0, 0)];
        while let Some((at, depth)) = open.pop() {
            *steps = steps.saturating_sub(1);
            let Some(node) = self.nodes.get(at) else { continue };
            if node.rest || *steps == 0 {
                return true;
            }
            match segments.get(depth) {
                None if node.end => return true,
                None => {}
                // Every node leads to the end of a pattern, which `**` matches.
                Some(Segment::Rest) => return true,
                Some(Segment::Literal(text)) => {
                    let next = node.literals.get(text).copied().into_iter().chain(node.one);
                    open.extend(next.map(|at| (at, depth + 1)));
                }
                Some(Segment::One(_)) => {
                    let next = node.literals.values().copied().chain(node.one);
                    *steps = steps.saturating_sub(node.literals.len());
                    open.extend(next.map(|at| (at, depth + 1)));
                }
            }
        }
        false
    }
}
