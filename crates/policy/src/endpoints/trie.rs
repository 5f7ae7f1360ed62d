//! A tree of path segments: the one index by path pattern.
//!
//! A hash map of literals stands at each node. A search visits a node only if all segments before it fit, so it costs
//! about as many lookups as the path has segments, however many patterns there are. Nothing is allocated.

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
    /// The value of the patterns with these segments; the nodes on the way are made.
    pub(crate) fn value_mut(&mut self, segments: &[Segment]) -> &mut T {
        let mut at = 0;
        for segment in segments {
            let fresh = self.nodes.len();
            let node = &mut self.nodes[at];
            let child = match segment {
                Segment::Literal(text) => *node.literals.entry(text.clone()).or_insert(fresh),
                Segment::One(_) => *node.one.get_or_insert(fresh),
                Segment::Rest => return &mut self.nodes[at].rest,
            };
            if child == fresh {
                self.nodes.push(Node::default());
            }
            at = child;
        }
        &mut self.nodes[at].end
    }
}

impl<T> PathTrie<T> {
    /// The first result of `look` among the values whose patterns take `path`, the most specific pattern first. `path`
    /// must be normalised.
    pub(crate) fn find_map<'t, R>(
        &'t self,
        path: &str,
        look: &mut impl FnMut(&'t T) -> Option<R>,
    ) -> Option<R> {
        let relative = path.strip_prefix('/')?;
        let relative = relative.strip_suffix('/').unwrap_or(relative);
        self.search(0, if relative.is_empty() { None } else { Some(relative) }, look)
    }

    /// `segments` is what is left of the path after those that led to `node`. The depth is that of the patterns, never
    /// that of the path.
    fn search<'t, R>(
        &'t self,
        node: usize,
        segments: Option<&str>,
        look: &mut impl FnMut(&'t T) -> Option<R>,
    ) -> Option<R> {
        let node = self.nodes.get(node)?;
        let found = match segments {
            None => look(&node.end),
            // Nothing to go on to, so the path need not be taken apart.
            Some(_) if node.literals.is_empty() && node.one.is_none() => None,
            Some(segments) => {
                let (first, others) = match segments.split_once('/') {
                    Some((first, others)) => (first, Some(others)),
                    None => (segments, None),
                };
                let literal = node.literals.get(first).and_then(|&child| self.search(child, others, look));
                literal.or_else(|| node.one.and_then(|child| self.search(child, others, look)))
            }
        };
        found.or_else(|| look(&node.rest))
    }
}

impl PathTrie<bool> {
    /// Whether some path is taken both by the pattern of `segments` and by one whose value is set. Each node that is
    /// looked at takes one of `steps`; without any left the answer is yes.
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
                // Every node leads to the end of a pattern, and the rest takes all of it.
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
