//! The forms of YAML 1.1 that the reference server reads: `yes` and `on`, octal numbers, and merge keys. Policies are YAML 1.2,
//! where the same text would have another meaning (`010` is ten).

use std::borrow::Cow;
use std::collections::HashMap;

use crate::raw::{Finding, MappingEntry, ProblemReport, YamlNode, YamlValue};
use crate::render::quote;

const MERGE: &str = "<<";

/// Replaces the merge keys of a tree by the entries that they stand for. A key of the mapping itself precedes merged ones, and of
/// several merged mappings the first one wins.
pub(super) fn merge_keys<'s>(node: YamlNode<'s>, report: &mut ProblemReport<'s>) -> YamlNode<'s> {
    let value = match node.value {
        scalar @ YamlValue::Scalar { .. } => scalar,
        YamlValue::List(items) => {
            YamlValue::List(items.into_iter().map(|item| merge_keys(item, report)).collect())
        }
        YamlValue::Mapping(entries) => YamlValue::Mapping(merge_entries(entries, report)),
    };
    YamlNode { value, ..node }
}

fn merge_entries<'s>(
    entries: Vec<MappingEntry<'s>>,
    report: &mut ProblemReport<'s>,
) -> Vec<MappingEntry<'s>> {
    let mut own: Vec<MappingEntry<'s>> = Vec::with_capacity(entries.len());
    let mut merged = Vec::new();
    let mut before = 0;
    for MappingEntry { key, value } in entries {
        let value = merge_keys(value, report);
        if key.text != MERGE {
            own.push(MappingEntry { key, value });
            continue;
        }
        before = own.len();
        match value.value {
            YamlValue::Mapping(entries) => merged = entries,
            YamlValue::List(items) => {
                for item in items {
                    match item.value {
                        YamlValue::Mapping(entries) => merged.extend(entries),
                        _ => report.push(not_a_mapping(&item)),
                    }
                }
            }
            YamlValue::Scalar { .. } => report.push(not_a_mapping(&value)),
        }
    }
    if merged.is_empty() {
        return own;
    }
    let mut positions: HashMap<_, _> =
        own.iter().enumerate().map(|(position, entry)| (entry.key.text.clone(), position)).collect();
    for entry in merged {
        let Some(position) = positions.get(&entry.key.text).copied() else {
            positions.insert(entry.key.text.clone(), own.len());
            own.push(entry);
            continue;
        };
        if let Some(own) = own.get(position).filter(|_| position < before) {
            // The reference server takes the last one here, other readers of YAML the one of the mapping.
            let text = format!("`<<` follows {}, which it defines too", quote(&own.key.text));
            report.push(Finding::key_error(&own.key, text).hint("write `<<` before all other keys"));
        }
    }
    own
}

fn not_a_mapping(node: &YamlNode<'_>) -> Finding {
    let finding = Finding::error(node, format!("`<<` cannot merge {}", node.describe()));
    finding.expected("an alias of a mapping, or a list of them")
}

/// The value of a flag in the words of YAML 1.1.
pub(super) fn flag(node: &YamlNode<'_>) -> Option<bool> {
    let YamlValue::Scalar { text, quoted: false } = &node.value else { return None };
    match &**text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// A number that is octal, hexadecimal or binary in decimal form; any other value as it is.
pub(super) fn decimal<'n, 's>(node: &'n YamlNode<'s>) -> Cow<'n, YamlNode<'s>> {
    let number = match &node.value {
        YamlValue::Scalar { text, quoted: false } => prefixed(text),
        _ => None,
    };
    let Some(number) = number else { return Cow::Borrowed(node) };
    let value = YamlValue::Scalar { text: number.to_string().into(), quoted: false };
    Cow::Owned(YamlNode { value, ..node.clone() })
}

/// The number with a prefix that states its base. A zero before other digits means octal.
fn prefixed(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('0').filter(|digits| !digits.is_empty())?.replace('_', "");
    let (base, digits) = match digits.split_at_checked(1)? {
        ("x" | "X", digits) => (16, digits),
        ("b" | "B", digits) => (2, digits),
        ("o" | "O", digits) => (8, digits),
        _ => (8, &*digits),
    };
    // The standard library reads a sign, too.
    if !digits.starts_with(|first: char| first.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, base).ok()
}
