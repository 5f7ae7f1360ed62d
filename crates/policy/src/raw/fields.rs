//! The keys of a mapping, held against the language.

use crate::language::Mapping;
use crate::raw::{Finding, ProblemReport, YamlNode, YamlValue};
use crate::render::quote;

/// A mapping whose keys are all part of the language, or reported.
#[derive(Debug)]
pub(crate) struct Fields<'n, 's> {
    node: &'n YamlNode<'s>,
    mapping: &'static Mapping,
}

impl<'n, 's> Fields<'n, 's> {
    /// Opens `node` as `mapping`; reports what it is instead, and every key that it may not have.
    pub(crate) fn open(
        node: &'n YamlNode<'s>,
        mapping: &'static Mapping,
        report: &mut ProblemReport<'s>,
    ) -> Option<Self> {
        let YamlValue::Mapping(entries) = &node.value else {
            let keys = mapping.keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ");
            let finding =
                Finding::error(node, format!("{} must be a mapping, not {}", mapping.name, node.describe()));
            report.push(finding.expected(format!("a mapping with keys of: {keys}")).hint(mapping.hint()));
            return None;
        };
        for entry in entries.iter().filter(|entry| mapping.key(&entry.key.text).is_none()) {
            let finding = Finding::key_error(&entry.key, format!("unknown key {}", quote(&entry.key.text)));
            if report.is_full() {
                report.push(finding);
                continue;
            }
            let known: Vec<_> = mapping.keys.iter().map(|key| key.name).collect();
            let finding = finding.expected(format!("one of {}", known.join(", ")));
            report.push(match nearest(&entry.key.text, known) {
                Some(near) => finding.hint(format!("did you mean `{near}`?")),
                None if entry.key.text == "<<" => finding.hint("there are no merge keys; write the keys out"),
                None => finding.hint(format!("{} has no such key; remove it", mapping.name)),
            });
        }
        Some(Self { node, mapping })
    }

    /// The value of `key`, if it was written.
    pub(crate) fn get(&self, key: &str) -> Option<&'n YamlNode<'s>> {
        let YamlValue::Mapping(entries) = &self.node.value else { return None };
        entries.iter().find(|entry| entry.key.text == key).map(|entry| &entry.value)
    }

    /// The value of `key`; reports that it is missing.
    pub(crate) fn require(&self, key: &str, report: &mut ProblemReport<'s>) -> Option<&'n YamlNode<'s>> {
        let value = self.get(key);
        if value.is_none() && !self.is_meant_by_another(key) {
            let example = self.mapping.key(key).map(|key| format!("{}: {}", key.name, key.example));
            let finding = Finding::error(self.node, format!("{} lacks `{key}`", self.mapping.name));
            report.push(finding.hint(format!("add it, such as `{}`", example.unwrap_or_default())));
        }
        value
    }

    /// Whether a key was written that is not of the language, which has been told.
    pub(crate) fn is_misspelt(&self) -> bool {
        let YamlValue::Mapping(entries) = &self.node.value else { return false };
        entries.iter().any(|entry| self.mapping.key(&entry.key.text).is_none())
    }

    /// Whether `key` is missing only because it was misspelt, which has been told.
    fn is_meant_by_another(&self, key: &str) -> bool {
        let YamlValue::Mapping(entries) = &self.node.value else { return false };
        // A mapping of many unknown keys is not a misspelt one.
        if entries.len() > 64 {
            return false;
        }
        let names = || self.mapping.keys.iter().map(|key| key.name);
        let unknown = |written: &str| self.mapping.key(written).is_none();
        let mut entries = entries.iter().map(|entry| &*entry.key.text).filter(|written| unknown(written));
        entries.any(|written| written == "<<" || nearest(written, names()) == Some(key))
    }
}

/// The name that was most likely meant.
pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A text of thousands of characters is no typing error, and comparing it would cost.
    if written.chars().nth(64).is_some() {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace(['-', ' ', '_'], "");
    let written = plain(written);
    let near = |name: &'a str| {
        let plain_name = plain(name);
        let distance = strsim::osa_distance(&written, &plain_name);
        let most = plain_name.len().max(3) / 3;
        // `jwks` for `jwks_file`, `request` for `requests`, `limit` for `rate_limits`.
        let part = written.len() >= 4 && plain_name.contains(&written);
        // Of several names that hold it, the first of the language is the usual one.
        let distance = if part { distance.min(1) } else { distance };
        (distance <= most || part).then_some((distance, name))
    };
    known.into_iter().filter_map(near).min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_and_nothing_far() {
        let known = ["requests", "window", "algorithm", "burst"];
        assert_eq!(nearest("reqests", known), Some("requests"));
        assert_eq!(nearest("algoritm", known), Some("algorithm"));
        assert_eq!(nearest("Window", known), Some("window"));
        assert_eq!(nearest("breaker", known), None);
        assert_eq!(nearest("identify-by", ["identify_by"]), Some("identify_by"));
        assert_eq!(nearest(&"x".repeat(100_000), known), None);
    }
}
