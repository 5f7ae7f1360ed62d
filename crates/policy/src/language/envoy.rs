//! The keys of the reference server's configuration, which `policy::envoy` reads. They are not part of a policy.

use super::Shape::{Choice, Count, List, Object, Text};
use super::names::ALGORITHMS;
use crate::envoy::RateUnit;

/// The values of a flag.
pub(crate) const ENVOY_FLAGS: &[&str] = &["true", "false"];

mappings! {
    /// A file of the reference server.
    ENVOY_FILE: "a rate limit configuration" at "envoy" {
        /// The name of the domain.
        domain: Text("name"), example "edge", required;
        /// The descriptors.
        descriptors: List(&Object(&ENVOY_DESCRIPTOR)), example "[{ key: user }]";
    }

    /// Matches one entry of a request's descriptor.
    ENVOY_DESCRIPTOR: "a descriptor" at "envoy.descriptors[]" {
        /// The key of the entry.
        key: Text("name"), example "remote_address", required;
        /// The value; `*` matches any text.
        value: Text("value"), example "50.0.0.5";
        /// The limit.
        rate_limit: Object(&ENVOY_RATE_LIMIT), example "{ unit: second, requests_per_unit: 10 }";
        /// Counts without rejecting.
        shadow_mode: Choice(ENVOY_FLAGS), example "true";
        /// Rejects only if all descriptors in quota mode are over their limits.
        quota_mode: Choice(ENVOY_FLAGS), example "true";
        /// Accepted without effect.
        metadata: Text("mapping"), example "{ team: search }";
        /// Accepted without effect.
        detailed_metric: Choice(ENVOY_FLAGS), example "true";
        /// Accepted without effect.
        value_to_metric: Choice(ENVOY_FLAGS), example "true";
        /// One counter for all values of a wildcard.
        share_threshold: Choice(ENVOY_FLAGS), example "true";
        /// Descriptors of the next entry.
        descriptors: List(&Text("descriptor")), example "[{ key: user }]";
    }

    /// A limit.
    ENVOY_RATE_LIMIT: "`rate_limit`" at "envoy.descriptors[].rate_limit" {
        /// The unit of time.
        unit: Choice(&RateUnit::NAMES), example "second", required_unless "`unlimited`";
        /// The number of requests.
        requests_per_unit: Count(0), example "10", required_unless "`unlimited`";
        /// No limit.
        unlimited: Choice(ENVOY_FLAGS), example "true";
        /// The name for `replaces`.
        name: Text("name"), example "per_user";
        /// Limits that this one replaces.
        replaces: List(&Object(&ENVOY_REPLACES)), example "[{ name: per_user }]";
        /// The algorithm.
        algorithm: Choice(ALGORITHMS), example "token_bucket", default "fixed_window";
        /// The number of units of a window.
        unit_multiplier: Count(1), example "15", default "1";
    }

    /// A limit that is replaced.
    ENVOY_REPLACES: "an entry of `replaces`" at "envoy.descriptors[].rate_limit.replaces[]" {
        /// Its name.
        name: Text("name"), example "per_user", required;
    }
}
