//! The language: every key with its shape, default, meaning and an example, in one table.
//!
//! The decoder takes its key lists from it, the JSON Schema for editors and docs/config.md are written from it, so
//! none of them can say something else.

mod limits;
mod names;
mod reference;
mod schema;
mod table;

pub(crate) use limits::{
    AFTER, CANARY, CHARGE, COST, ENDPOINT, GLOBAL, LIMIT, MATCH, PENALTY, RATE_LIMITS, RULE,
};
pub(crate) use names::{
    ALGORITHMS, BALANCES, ENCODED_SLASHES, ERROR_BODIES, EVERYBODY, HEADER_STYLES, IDENTITIES,
    KEY_VERIFICATIONS, MODES, OFF, PATH_CASES, UNDERSCORE_HEADERS,
};
pub use reference::reference;
pub use schema::schema;
pub(crate) use table::{
    ADMIN, API_KEY, BANS, CLIENTS, COOKIE, EXEMPT, FINGERPRINT, HEALTH, HTTP, IP, JWT, LISTEN, LOG, POLICY,
    ROUTE, STORE, TENANT, TIERS, TLS, TRACES, UPSTREAM, USER,
};

/// A mapping of the language.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// What it is, as messages call it.
    pub(crate) name: &'static str,
    /// Where it stands, as the reference heads it.
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
            return "begin with `rate_limits:` at the margin, and indent what belongs to it".to_owned();
        }
        let shown = self.keys.iter().filter(|key| key.usual).take(3);
        let shown: Vec<_> = shown.map(|key| format!("{}: {}", key.name, key.example)).collect();
        match (shown.as_slice(), self.keys) {
            ([], [first, ..]) => format!("write it like `{{ {}: {} }}`", first.name, first.example),
            ([], []) => String::new(),
            (shown, _) => format!("write it like `{{ {} }}`", shown.join(", ")),
        }
    }
}

/// A key of a mapping.
#[derive(Debug)]
pub(crate) struct PolicyKey {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    /// What holds where it is left out, in words.
    pub(crate) default: &'static str,
    pub(crate) doc: &'static str,
    /// YAML that can stand behind the key.
    pub(crate) example: &'static str,
    pub(crate) required: bool,
    /// Whether it is required where something else does not stand in its place.
    pub(crate) usual: bool,
}

impl PolicyKey {
    const fn new(name: &'static str, shape: Shape, doc: &'static str, example: &'static str) -> Self {
        Self { name, shape, default: "none", doc, example, required: false, usual: false }
    }

    const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    const fn required(self) -> Self {
        Self { default: "required", required: true, usual: true, ..self }
    }

    /// Required unless something else stands in its place, as `default` says.
    const fn required_unless(self, default: &'static str) -> Self {
        Self { default, required: false, usual: true, ..self }
    }
}

/// What may stand behind a key.
#[derive(Debug)]
pub(crate) enum Shape {
    /// A text of a kind that the word names.
    Text(&'static str),
    /// A whole number of at least this.
    Count(u64),
    /// A length of time.
    Duration,
    /// A number of bytes.
    Size,
    /// A share of all.
    Percent,
    /// A status of a response, or a class of them.
    Status,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// One or many, in a list.
    List(&'static Shape),
    /// One, or a list of many.
    OneOrMany(&'static Shape),
    /// A mapping.
    Object(&'static Mapping),
    /// A mapping from names of the operator's choice; the word says what they name.
    Named(&'static str, &'static Shape),
    /// Any of these.
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
    fn every_key_has_a_meaning_and_an_example() {
        let mut seen = BTreeSet::new();
        visit(&POLICY, &mut seen);
        assert!(seen.contains("rate_limits.rules[].match"), "{seen:?}");
    }
}
