//! The configuration of Envoy's reference rate limit server: domains with nested descriptors.
//!
//! [`EnvoyLimits::compile`] reads all files of a configuration and reports every problem with file, line and path, like
//! [`compile`](crate::compile()). `decode` turns the YAML tree into a tree of descriptors, `tree` looks up the
//! descriptors of requests, `wildcard` matches values with `*`.
//!
//! A limit is identified by its domain and its path in the configuration ([`DescriptorLimit::label`]), and its counters by
//! the values of the request's entries, each with its length. Text that a client chooses therefore never selects the
//! counter of another descriptor.

mod decode;
#[cfg(test)]
mod tests;
mod tree;
mod unit;
mod wildcard;
mod yaml11;

use std::collections::HashMap;
use std::fmt;

use tidegate_core::{Algorithm, Limit, LimitError, RuleId, TimeSpan};
use tidegate_headers::Quota;

use crate::problem::Problems;
pub use tree::EnvoyDomain;
pub use unit::RateUnit;

/// A file of a configuration.
#[derive(Clone, Debug)]
pub struct EnvoyFile {
    /// The name in problems.
    pub name: String,
    /// The contents.
    pub bytes: Vec<u8>,
}

/// All domains of a configuration.
#[derive(Debug, Default)]
pub struct EnvoyLimits {
    domains: HashMap<String, EnvoyDomain>,
}

/// A descriptor of the configuration that has a limit.
#[derive(Debug)]
pub struct DescriptorLimit {
    /// The id in the keys of its counters: that of the label.
    pub rule: RuleId,
    /// The name in metrics and logs: the domain and the path in the configuration, escaped so that no two are equal.
    pub label: String,
    /// The name in response headers: `rate_limit.name`, or the keys of the path.
    pub announced: String,
    /// `rate_limit.name`.
    pub name: Option<String>,
    /// The names of the limits that it replaces.
    pub replaces: Vec<String>,
    /// Whether it only counts, without rejecting.
    pub is_shadow: bool,
    /// Whether it rejects only if all such limits of a call are exceeded.
    pub is_quota: bool,
    /// The limit; `None` if it is unlimited.
    pub rate: Option<EnvoyRate>,
}

/// A number of requests per unit of time.
#[derive(Clone, Copy, Debug)]
pub struct EnvoyRate {
    /// The number of requests.
    pub requests_per_unit: u32,
    /// The unit.
    pub unit: RateUnit,
    /// The window.
    pub window: TimeSpan,
    /// The limit with its quota; `None` if no request is admitted.
    pub limit: Option<(Limit, Quota)>,
}

impl EnvoyLimits {
    /// Reads all files of a configuration. Two files must not have the same domain.
    pub fn compile(files: &[EnvoyFile]) -> Result<Self, Problems> {
        decode::compile(files)
    }

    /// The domain called `name`.
    pub fn domain(&self, name: &str) -> Option<&EnvoyDomain> {
        self.domains.get(name)
    }

    /// The number of domains.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// All domains, by name.
    pub fn iter_domains(&self) -> impl Iterator<Item = (&str, &EnvoyDomain)> {
        let mut domains: Vec<_> = self.domains.iter().map(|(name, domain)| (name.as_str(), domain)).collect();
        domains.sort_unstable_by_key(|(name, _)| *name);
        domains.into_iter()
    }

    /// Every limit of every domain.
    pub fn iter(&self) -> impl Iterator<Item = &DescriptorLimit> {
        self.domains.values().flat_map(EnvoyDomain::limits)
    }
}

impl DescriptorLimit {
    /// The path in the configuration without the domain, escaped like the label: `key=value/key`.
    pub fn path(&self) -> &str {
        // A slash within a domain is escaped.
        self.label.split_once('/').map_or(&self.label, |(_, path)| path)
    }
}

/// `10 per minute`, `100 per 15 minutes, token_bucket`.
impl fmt::Display for EnvoyRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests_per_unit, unit, window, limit } = self;
        let multiplier = window.as_micros() / unit.span().as_micros().max(1);
        match multiplier {
            1 => write!(f, "{requests_per_unit} per {}", unit.name())?,
            _ => write!(f, "{requests_per_unit} per {multiplier} {}s", unit.name())?,
        }
        match limit.map(|(limit, _)| limit.algorithm()) {
            None | Some(Algorithm::FixedWindow) => Ok(()),
            Some(algorithm) => write!(f, ", {algorithm}"),
        }
    }
}

impl EnvoyRate {
    /// `requests_per_unit` per `unit` as the reference server counts them: in windows that are aligned to the clock.
    pub fn fixed_window(requests_per_unit: u32, unit: RateUnit) -> Result<Self, LimitError> {
        decode::rate(Algorithm::FixedWindow, requests_per_unit, unit, 1)
    }
}
