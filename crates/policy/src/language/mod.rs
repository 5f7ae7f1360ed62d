//! The policy language: one table of all keys with type, default, meaning and example.
//!
//! The compiler, the JSON Schema for editors and docs/config.md all use this table, so they cannot contradict each
//! other. What they say about a mapping or a key is its documentation comment here.

/// Declares mappings: `NAME: name in messages at path { keys }`. A key is declared as `name: shape, example …`, followed by its
/// default or by `required`, or is a shared one, which may be changed.
macro_rules! mappings {
    ($($(#[doc = $doc:literal])+ $mapping:ident: $name:literal at $path:literal {
        $($(#[doc = $key_doc:literal])* $key:ident
            $(: $shape:expr, example $example:literal $(, $modifier:ident $($text:literal)?)?)?
            $(. $change:ident ($changed:literal))?;)+
    })+) => {
        $(pub(crate) static $mapping: $crate::language::Mapping = $crate::language::Mapping {
            name: $name,
            path: $path,
            doc: concat!($($doc),+).trim_ascii_start(),
            keys: &[$(policy_key!(
                $(#[doc = $key_doc])* $key
                $(: $shape, example $example $(, $modifier $($text)?)?)?
                $(. $change ($changed))?
            )),+],
        };)+
    };
}

/// Declares keys that several mappings share, or that another file declares.
macro_rules! shared_keys {
    ($($(#[doc = $doc:literal])+ $shared:ident = $key:ident: $shape:expr, example $example:literal
        $(, $modifier:ident $($text:literal)?)?;)+) => {
        $(pub(super) const $shared: $crate::language::PolicyKey = policy_key!(
            $(#[doc = $doc])+ $key: $shape, example $example $(, $modifier $($text)?)?
        );)+
    };
}

macro_rules! policy_key {
    ($shared:ident $(. $change:ident ($changed:literal))?) => {
        $shared$(.$change($changed))?
    };
    ($(#[doc = $doc:literal])+ $key:ident: $shape:expr, example $example:literal
        $(, $modifier:ident $($text:literal)?)?) => {
        $crate::language::PolicyKey {
            name: stringify!($key),
            shape: $shape,
            default: "none",
            doc: concat!($($doc),+).trim_ascii_start(),
            example: $example,
            required: false,
            usual: false,
        }
        $(.$modifier($($text)?))?
    };
}

mod actions;
mod envoy;
mod limits;
mod names;
mod reference;
mod rejections;
mod resilience;
mod schema;
mod service;
mod store;
mod table;

pub(crate) use actions::{CACHE, CACHED, DEFER, DEGRADE, LEND, ON_EXCEED, SLOWDOWN};
pub(crate) use envoy::{ENVOY_DESCRIPTOR, ENVOY_FILE, ENVOY_FLAGS, ENVOY_RATE_LIMIT, ENVOY_REPLACES};
pub(crate) use limits::{
    AFTER, CANARY, CHARGE, COST, ENDPOINT, GLOBAL, LIMIT, MATCH, PENALTY, RATE_LIMITS, RULE, RULE_USER,
};
pub(crate) use names::{
    ADAPTIVE, ALGORITHM_VALUES, ALGORITHMS, CREDENTIALS, EVERYBODY, IDENTITIES, KEY_VERIFICATIONS, MODES,
    OFF, REPORTS, RETRY_CAUSES,
};
pub use reference::reference;
pub(crate) use rejections::{ERROR_BODY, RULE_ERROR_BODY};
pub(crate) use resilience::{
    ADAPTIVE_LIMIT, BREAKER, BULKHEAD, EJECT, FALLBACK, RETRY, RETRY_BUDGET, ROUTE_BULKHEAD, SHED, SLOW,
    TIMEOUTS,
};
pub use schema::schema;
pub(crate) use service::{SERVICE, SERVICE_LISTENER, SERVICE_TLS};
pub(crate) use store::{STORE, STORE_TLS};
pub(crate) use table::{
    ADMIN, ALLOW, API_KEY, BANS, CLIENTS, COOKIE, EXEMPT, FINGERPRINT, HEALTH, HTTP, IP, JWT, LISTEN, LOG,
    POLICY, RELOAD, ROUTE, TENANT, TIERS, TLS, TRACES, UPSTREAM, USER,
};

/// A mapping of the language.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// The name in messages.
    pub(crate) name: &'static str,
    /// The path in the document, the heading in the reference.
    pub(crate) path: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) keys: &'static [PolicyKey],
}

impl Mapping {
    pub(crate) fn key(&self, name: &str) -> Option<&'static PolicyKey> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// An example of the whole mapping.
    pub(crate) fn hint(&self) -> String {
        if self.path.is_empty() {
            return "start with `rate_limits:` and indent its keys".to_owned();
        }
        let shown = self.keys.iter().filter(|key| key.usual).take(3);
        let shown: Vec<_> = shown.map(|key| format!("{}: {}", key.name, key.example)).collect();
        match (shown.as_slice(), self.keys) {
            ([], [first, ..]) => format!("for example `{{ {}: {} }}`", first.name, first.example),
            ([], []) => String::new(),
            (shown, _) => format!("for example `{{ {} }}`", shown.join(", ")),
        }
    }
}

/// A key of a mapping.
#[derive(Debug)]
pub(crate) struct PolicyKey {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    /// The default, as the reference shows it.
    pub(crate) default: &'static str,
    pub(crate) doc: &'static str,
    /// A value in YAML.
    pub(crate) example: &'static str,
    pub(crate) required: bool,
    /// Whether examples show it: it is required, or required unless another key is set.
    pub(crate) usual: bool,
}

impl PolicyKey {
    const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    const fn required(self) -> Self {
        Self { default: "required", required: true, usual: true, ..self }
    }

    /// Required unless another key is set, as `default` says.
    const fn required_unless(self, default: &'static str) -> Self {
        Self { default, required: false, usual: true, ..self }
    }
}

/// The type of a key's value.
#[derive(Debug)]
pub(crate) enum Shape {
    /// A string; the text says which kind.
    Text(&'static str),
    /// A whole number with this minimum.
    Count(u64),
    /// A duration.
    Duration,
    /// A number of bytes.
    Size,
    /// A percentage.
    Percent,
    /// A status code, or a class of status codes.
    Status,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// A list.
    List(&'static Shape),
    /// One value, or a list of values.
    OneOrMany(&'static Shape),
    /// A mapping.
    Object(&'static Mapping),
    /// A mapping with keys that the operator chooses; the text says what they name.
    Named(&'static str, &'static Shape),
    /// One of several types.
    Either(&'static [Shape]),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn visit(mapping: &'static Mapping, seen: &mut BTreeSet<&'static str>) {
        assert!(!mapping.doc.is_empty() && !mapping.name.is_empty());
        for key in mapping.keys {
            assert!(!key.doc.is_empty() && !key.example.is_empty(), "{}.{}", mapping.path, key.name);
            visit_shape(&key.shape, seen);
        }
        seen.insert(mapping.path);
    }

    fn visit_shape(shape: &'static Shape, seen: &mut BTreeSet<&'static str>) {
        match shape {
            Shape::List(inner) | Shape::OneOrMany(inner) | Shape::Named(_, inner) => visit_shape(inner, seen),
            Shape::Object(mapping) => visit(mapping, seen),
            Shape::Either(shapes) => shapes.iter().for_each(|shape| visit_shape(shape, seen)),
            _ => {}
        }
    }

    #[test]
    fn language_keys_all_have_description_and_example() {
        let mut seen = BTreeSet::new();
        visit(&POLICY, &mut seen);
        assert!(seen.contains("rate_limits.rules[].match"), "{seen:?}");
    }
}
