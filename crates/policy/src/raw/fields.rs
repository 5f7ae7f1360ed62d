//! Checks the keys of a mapping against the language.

use crate::language::Mapping;
use crate::raw::{Finding, ProblemReport, YamlNode, YamlValue};
use crate::render::quote;
use crate::units::{count, duration, split_rate};

/// A mapping whose unknown keys have been reported.
#[derive(Debug)]
pub(crate) struct Fields<'n, 's> {
    node: &'n YamlNode<'s>,
    mapping: &'static Mapping,
}

impl<'n, 's> Fields<'n, 's> {
    /// Reads `node` as `mapping`. Reports a value that is not a mapping, and every unknown key.
    pub(crate) fn open(
        node: &'n YamlNode<'s>,
        mapping: &'static Mapping,
        report: &mut ProblemReport<'s>,
    ) -> Option<Self> {
        let YamlValue::Mapping(entries) = &node.value else {
            let keys = mapping.keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ");
            let finding =
                Finding::error(node, format!("{} must be a mapping, not {}", mapping.name, node.describe()));
            report.push(finding.expected(format!("a mapping with these keys: {keys}")).hint(mapping.hint()));
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
            if let Some(keys) = as_two_keys(mapping, &entry.value) {
                report.push(finding.hint(format!("write it as two keys: `{keys}`")));
                continue;
            }
            let finding = if entry.key.text == "<<" {
                finding.hint("merge keys are not supported; write the keys out")
            } else {
                finding.hint(format!("remove it; {} has no such key", mapping.name))
            };
            report.push(finding.did_you_mean(nearest(&entry.key.text, known)));
        }
        Some(Self { node, mapping })
    }

    /// Returns the value of `key`, if present.
    pub(crate) fn get(&self, key: &str) -> Option<&'n YamlNode<'s>> {
        let YamlValue::Mapping(entries) = &self.node.value else { return None };
        entries.iter().find(|entry| entry.key.text == key).map(|entry| &entry.value)
    }

    /// Returns what `decode` makes of the value of `key`, or `default` if the key is absent.
    pub(crate) fn get_or<T>(
        &self,
        key: &str,
        default: T,
        decode: impl FnOnce(&'n YamlNode<'s>) -> Option<T>,
    ) -> Option<T> {
        self.get(key).map_or(Some(default), decode)
    }

    /// Returns the value of `key`; reports a missing key.
    pub(crate) fn require(&self, key: &str, report: &mut ProblemReport<'s>) -> Option<&'n YamlNode<'s>> {
        let value = self.get(key);
        if value.is_none() && !self.is_misspelt_as_another(key) {
            let example = self.mapping.key(key).map(|key| format!("{}: {}", key.name, key.example));
            let finding = Finding::error(self.node, format!("{} is missing `{key}`", self.mapping.name));
            report.push(finding.hint(format!("add it, for example `{}`", example.unwrap_or_default())));
        }
        value
    }

    /// Whether the mapping has an unknown key. It has been reported.
    pub(crate) fn is_misspelt(&self) -> bool {
        let YamlValue::Mapping(entries) = &self.node.value else { return false };
        entries.iter().any(|entry| self.mapping.key(&entry.key.text).is_none())
    }

    /// Whether `key` is missing only because it was misspelt. The misspelt key has been reported.
    fn is_misspelt_as_another(&self, key: &str) -> bool {
        let YamlValue::Mapping(entries) = &self.node.value else { return false };
        // Do not compare the keys of very large mappings.
        if entries.len() > 64 {
            return false;
        }
        let mut unknown_entries = entries.iter().filter(|entry| self.mapping.key(&entry.key.text).is_none());
        if matches!(key, "requests" | "window")
            && unknown_entries.any(|entry| as_two_keys(self.mapping, &entry.value).is_some())
        {
            return true;
        }
        let names = || self.mapping.keys.iter().map(|key| key.name);
        let unknown = |written: &str| self.mapping.key(written).is_none();
        let mut entries = entries.iter().map(|entry| &*entry.key.text).filter(|written| unknown(written));
        entries.any(|written| written == "<<" || nearest(written, names()) == Some(key))
    }
}

/// A rate such as `100/m` as the two keys of a limit.
fn as_two_keys(mapping: &Mapping, value: &YamlNode<'_>) -> Option<String> {
    let YamlValue::Scalar { text, .. } = &value.value else { return None };
    let (requests, window) = ["requests", "window"]
        .iter()
        .all(|key| mapping.key(key).is_some())
        .then(|| split_rate(text))
        .flatten()?;
    let is_rate = count(requests).is_ok() && duration(&window).is_ok();
    is_rate.then(|| format!("requests: {requests}, window: {window}"))
}

/// Returns the known name that was most likely meant.
pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A long text is not a typo, and comparing it is expensive.
    if written.chars().nth(64).is_some() {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace(['-', ' ', '_'], "");
    let written = plain(written);
    let near = |name: &'a str| {
        let plain_name = plain(name);
        let distance = strsim::osa_distance(&written, &plain_name);
        let max_distance = plain_name.len().max(3) / 3;
        // `jwks` for `jwks_file`, `request` for `requests`, `limit` for `rate_limits`.
        // `circuit_breaker` for `breaker`.
        let part = (written.len() >= 4 && plain_name.contains(&written))
            || (plain_name.len() >= 6 && written.contains(&plain_name));
        // Of several names that contain it, the first one wins.
        let distance = if part { distance.min(1) } else { distance };
        (distance <= max_distance || part).then_some((distance, name))
    };
    known.into_iter().filter_map(near).min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_returns_similar_name_and_nothing_for_different_ones() {
        let known = ["requests", "window", "algorithm", "burst"];
        assert_eq!(nearest("reqests", known), Some("requests"));
        assert_eq!(nearest("algoritm", known), Some("algorithm"));
        assert_eq!(nearest("Window", known), Some("window"));
        assert_eq!(nearest("breaker", known), None);
        assert_eq!(nearest("circuit_breaker", ["bulkhead", "breaker"]), Some("breaker"));
        assert_eq!(nearest("identify-by", ["identify_by"]), Some("identify_by"));
        assert_eq!(nearest(&"x".repeat(100_000), known), None);
    }
}
