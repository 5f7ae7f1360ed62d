//! The keys of the reference server's configuration, which `policy::envoy` reads. They are not part of a policy.

use super::Shape::{Choice, Count, List, Object, Text};
use super::names::ALGORITHMS;
use super::{Mapping, PolicyKey};
use crate::envoy::RateUnit;

/// The values of a flag.
pub(crate) const ENVOY_FLAGS: &[&str] = &["true", "false"];

pub(crate) static ENVOY_FILE: Mapping = Mapping {
    name: "a rate limit configuration",
    path: "envoy",
    doc: "A file of the reference server.",
    keys: &[
        PolicyKey::new("domain", Text("name"), "The name of the domain.", "edge").required(),
        PolicyKey::new(
            "descriptors",
            List(&Object(&ENVOY_DESCRIPTOR)),
            "The descriptors.",
            "[{ key: user }]",
        ),
    ],
};

pub(crate) static ENVOY_DESCRIPTOR: Mapping = Mapping {
    name: "a descriptor",
    path: "envoy.descriptors[]",
    doc: "Matches one entry of a request's descriptor.",
    keys: &[
        PolicyKey::new("key", Text("name"), "The key of the entry.", "remote_address").required(),
        PolicyKey::new("value", Text("value"), "The value; `*` matches any text.", "50.0.0.5"),
        PolicyKey::new(
            "rate_limit",
            Object(&ENVOY_RATE_LIMIT),
            "The limit.",
            "{ unit: second, requests_per_unit: 10 }",
        ),
        PolicyKey::new("shadow_mode", Choice(ENVOY_FLAGS), "Counts without rejecting.", "true"),
        PolicyKey::new(
            "quota_mode",
            Choice(ENVOY_FLAGS),
            "Rejects only if all descriptors in quota mode are over their limits.",
            "true",
        ),
        PolicyKey::new("metadata", Text("mapping"), "Accepted without effect.", "{ team: search }"),
        PolicyKey::new("detailed_metric", Choice(ENVOY_FLAGS), "Accepted without effect.", "true"),
        PolicyKey::new("value_to_metric", Choice(ENVOY_FLAGS), "Accepted without effect.", "true"),
        PolicyKey::new(
            "share_threshold",
            Choice(ENVOY_FLAGS),
            "One counter for all values of a wildcard.",
            "true",
        ),
        PolicyKey::new(
            "descriptors",
            List(&Text("descriptor")),
            "Descriptors of the next entry.",
            "[{ key: user }]",
        ),
    ],
};

pub(crate) static ENVOY_RATE_LIMIT: Mapping = Mapping {
    name: "`rate_limit`",
    path: "envoy.descriptors[].rate_limit",
    doc: "A limit.",
    keys: &[
        PolicyKey::new("unit", Choice(&RateUnit::NAMES), "The unit of time.", "second")
            .required_unless("`unlimited`"),
        PolicyKey::new("requests_per_unit", Count(0), "The number of requests.", "10")
            .required_unless("`unlimited`"),
        PolicyKey::new("unlimited", Choice(ENVOY_FLAGS), "No limit.", "true"),
        PolicyKey::new("name", Text("name"), "The name for `replaces`.", "per_user"),
        PolicyKey::new(
            "replaces",
            List(&Object(&ENVOY_REPLACES)),
            "Limits that this one replaces.",
            "[{ name: per_user }]",
        ),
        PolicyKey::new("algorithm", Choice(ALGORITHMS), "The algorithm.", "token_bucket")
            .default("fixed_window"),
        PolicyKey::new("unit_multiplier", Count(1), "The number of units of a window.", "15").default("1"),
    ],
};

pub(crate) static ENVOY_REPLACES: Mapping = Mapping {
    name: "an entry of `replaces`",
    path: "envoy.descriptors[].rate_limit.replaces[]",
    doc: "A limit that is replaced.",
    keys: &[PolicyKey::new("name", Text("name"), "Its name.", "per_user").required()],
};
