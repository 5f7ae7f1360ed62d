//! Finds the most specific endpoint pattern that matches a request.
//!
//! Patterns are compared segment by segment from the left: a literal beats `{parameter}` and `*`, which beat
//! `**`, and an end beats `**`. Between equal paths a pattern with the request's method beats one without.
//! A pattern with another method does not match at all, so a less specific one may match.
//!
//! The tree of segments (`trie`) is searched from the literals to `**`, so the first hit is the most specific.

mod pattern;
mod trie;

pub(crate) use pattern::Segment;
pub use pattern::{EndpointPattern, PatternError};
pub(crate) use trie::PathTrie;

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
    paths: PathTrie<MethodTable>,
    values: Vec<T>,
}

/// Two patterns match the same requests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("duplicate endpoint `{pattern}`; trailing slashes and parameter names are ignored")]
pub struct DuplicateEndpoint {
    /// The pattern, normalised.
    pub pattern: String,
}

/// Values by method.
#[derive(Debug, Clone, Default)]
struct MethodTable {
    named: Vec<(Box<str>, usize)>,
    any: Option<usize>,
}

impl<T> Default for Endpoints<T> {
    fn default() -> Self {
        Self { paths: PathTrie::default(), values: Vec::new() }
    }
}

impl<T> Endpoints<T> {
    /// Adds `value` for the requests that `pattern` matches.
    pub fn insert(&mut self, pattern: &EndpointPattern, value: T) -> Result<(), DuplicateEndpoint> {
        let index = self.values.len();
        let methods = self.paths.value_mut(pattern.segments());
        let is_duplicate = match pattern.method() {
            None => methods.any.is_some(),
            Some(method) => methods.named.iter().any(|(known, _)| **known == *method),
        };
        if is_duplicate {
            return Err(DuplicateEndpoint { pattern: pattern.to_string() });
        }
        match pattern.method() {
            None => methods.any = Some(index),
            Some(method) => methods.named.push((method.into(), index)),
        }
        self.values.push(value);
        Ok(())
    }

    /// The value of the most specific pattern that matches; `path` must be normalised.
    pub fn find(&self, method: &str, path: &str) -> Option<&T> {
        let found = self.paths.find_map(path, &mut |methods| methods.find(method))?;
        self.values.get(found)
    }
}

/// The method whose rules also apply to this one. HEAD is GET without a body, so it must not bypass the limits of GET.
pub(crate) fn equivalent_method(method: &str) -> Option<&'static str> {
    (method == "HEAD").then_some("GET")
}

impl MethodTable {
    fn find(&self, method: &str) -> Option<usize> {
        let named = |method: &str| Some(self.named.iter().find(|(known, _)| **known == *method)?.1);
        named(method).or_else(|| named(equivalent_method(method)?)).or(self.any)
    }
}

#[cfg(test)]
mod tests;
