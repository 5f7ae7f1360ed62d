//! Which endpoint a request is for: the most specific pattern that fits.
//!
//! Patterns are compared segment by segment from the left: a literal beats `{parameter}` and `*`, which beat
//! `**`, and an end beats `**`. Between equal paths a pattern with the request's method beats one without.
//! A pattern whose method does not fit does not match at all, so a less specific one may.
//!
//! The patterns are a tree of segments with a hash map of literals at each node. A search follows the literal
//! first, then the parameter, then `**`, so the first hit is the most specific. It visits a node only if all
//! segments before it fit; each request costs about as many lookups as its path has segments, however many
//! patterns there are. Nothing is allocated.

mod pattern;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

pub(crate) use pattern::Segment;
pub use pattern::{EndpointPattern, PatternError};

/// Values by endpoint pattern.
///
/// ```
/// use tidegate_policy::{EndpointPattern, Endpoints};
///
/// let mut endpoints = Endpoints::default();
/// for pattern in ["/api/**", "/api/v1/{thing}", "POST /api/v1/orders"] {
///     endpoints.insert(&EndpointPattern::parse(pattern)?, pattern)?;
/// }
/// assert_eq!(endpoints.find("POST", "/api/v1/orders"), Some(&"POST /api/v1/orders"));
/// assert_eq!(endpoints.find("GET", "/api/v1/orders/"), Some(&"/api/v1/{thing}"));
/// assert_eq!(endpoints.find("GET", "/api"), Some(&"/api/**"));
/// assert_eq!(endpoints.find("GET", "/"), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Endpoints<T> {
    /// The first is the root.
    nodes: Vec<Node>,
    values: Vec<T>,
}

/// Two patterns mean the same requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{pattern}` is given twice; a trailing slash and the names of parameters make no difference")]
pub struct DuplicateEndpoint {
    /// The pattern, normalised.
    pub pattern: String,
}

#[derive(Debug, Clone, Default)]
struct Node {
    literals: HashMap<Box<str>, usize, RandomState>,
    one: Option<usize>,
    /// Patterns that end here.
    end: Methods,
    /// Patterns that end here with `**`.
    rest: Methods,
}

/// Values by method.
#[derive(Debug, Clone, Default)]
struct Methods {
    named: Vec<(Box<str>, usize)>,
    any: Option<usize>,
}

impl<T> Default for Endpoints<T> {
    fn default() -> Self {
        Self { nodes: vec![Node::default()], values: Vec::new() }
    }
}

impl<T> Endpoints<T> {
    /// Adds `value` for the requests that `pattern` means.
    pub fn insert(&mut self, pattern: &EndpointPattern, value: T) -> Result<(), DuplicateEndpoint> {
        let index = self.values.len();
        let methods = self.methods_mut(pattern.segments());
        let is_taken = match pattern.method() {
            None => methods.any.is_some(),
            Some(method) => methods.named.iter().any(|(known, _)| **known == *method),
        };
        if is_taken {
            return Err(DuplicateEndpoint { pattern: pattern.to_string() });
        }
        match pattern.method() {
            None => methods.any = Some(index),
            Some(method) => methods.named.push((method.into(), index)),
        }
        self.values.push(value);
        Ok(())
    }

    /// The value of the most specific pattern that fits; `path` must be normalised.
    pub fn find(&self, method: &str, path: &str) -> Option<&T> {
        let relative = path.strip_prefix('/')?;
        let relative = relative.strip_suffix('/').unwrap_or(relative);
        let segments = if relative.is_empty() { None } else { Some(relative) };
        let found = self.search(0, segments, method)?;
        self.values.get(found)
    }

    /// How many patterns there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// `segments` is what is left of the path after those that led to `node`. The depth is that of the
    /// patterns, never that of the path.
    fn search(&self, node: usize, segments: Option<&str>, method: &str) -> Option<usize> {
        let node = self.nodes.get(node)?;
        let Some(segments) = segments else {
            return node.end.find(method).or_else(|| node.rest.find(method));
        };
        let (first, others) = match segments.split_once('/') {
            Some((first, others)) => (first, Some(others)),
            None => (segments, None),
        };
        let literal = node.literals.get(first).and_then(|&child| self.search(child, others, method));
        literal
            .or_else(|| node.one.and_then(|child| self.search(child, others, method)))
            .or_else(|| node.rest.find(method))
    }

    /// Where the patterns with these segments stand; the nodes on the way are made.
    fn methods_mut(&mut self, segments: &[Segment]) -> &mut Methods {
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

/// The method whose rules apply to this one too: a HEAD is a GET without its body, and no way around its limits.
pub(crate) fn stands_for(method: &str) -> Option<&'static str> {
    (method == "HEAD").then_some("GET")
}

impl Methods {
    fn find(&self, method: &str) -> Option<usize> {
        let named = |method: &str| Some(self.named.iter().find(|(known, _)| **known == *method)?.1);
        named(method).or_else(|| named(stands_for(method)?)).or(self.any)
    }
}

#[cfg(test)]
mod tests;
