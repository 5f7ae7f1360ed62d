//! Decodes `rate_limits`.

use std::collections::HashMap;

use tidegate_core::{Algorithm, Borrow, Limit, LimitError, RuleId, Spec};

use crate::compile::names::NameConflict;
use crate::compile::{CompileContext, actions, counters, mode, rejections, rules, scalar, store};
use crate::endpoints::EndpointPattern;
use crate::language::{ALGORITHM_VALUES, ALGORITHMS, ENDPOINT, GLOBAL, LIMIT, Mapping};
use crate::plan::{Clients, EndpointRule, ExceedAction, PathCase, Quota, RateLimits, Rule, Tier};
use crate::raw::{Fields, Finding, MappingEntry, MappingKey, NodeRef, YamlNode, YamlValue};
use crate::render::quote;

/// Returns the names of the tiers, before anything is decoded.
pub(super) fn tier_names<'n>(rate_limits: Option<&'n YamlNode<'_>>) -> Vec<&'n str> {
    let entries = |node: &'n YamlNode<'_>| match &node.value {
        YamlValue::Mapping(entries) => entries.as_slice(),
        _ => &[],
    };
    let tiers = rate_limits.map(entries).unwrap_or_default().iter().find(|entry| entry.key.text == "tiers");
    tiers
        .map(|entry| entries(&entry.value))
        .unwrap_or_default()
        .iter()
        .map(|entry| &*entry.key.text)
        .collect()
}

/// Decodes all limits. `clients` is `None` if it is invalid.
pub(super) fn rate_limits<'s>(
    fields: &Fields<'_, 's>,
    clients: Option<&Clients>,
    context: &mut CompileContext<'s, '_>,
) -> RateLimits {
    let mut single = |key: &str, mapping: &'static Mapping| {
        let node = fields.get(key)?;
        let hint = "remove it; without a limit nothing is limited";
        reject_unlimited(node, hint, context)?;
        named_limit(node, mapping, key.to_owned(), context)
    };
    let global = single("global", &GLOBAL);
    let tenant = single("tenant", &LIMIT);
    let default = single("default", &LIMIT);
    let tiers = fields.get("tiers").map(|node| tiers(node, context)).unwrap_or_default();
    let endpoints = fields.get("endpoints").map(|node| endpoints(node, context)).unwrap_or_default();
    // Rules come last, so that a name conflict is reported at the rule.
    let (rules, concurrent) =
        fields.get("rules").map(|node| rules::rules(node, clients, context)).unwrap_or_default();
    let limits = RateLimits { global, tenant, default, tiers, rules, endpoints, concurrent };
    if let Some(clients) = clients {
        counters::check(clients, &limits, &context.targets, &mut context.report);
    }
    limits
}

fn reject_unlimited(node: &YamlNode<'_>, hint: &str, context: &mut CompileContext<'_, '_>) -> Option<()> {
    if matches!(&node.value, YamlValue::Scalar { text, .. } if text == "unlimited") {
        let finding = Finding::error(node, "only a tier can be `unlimited`");
        context.report.push(finding.hint(hint));
        return None;
    }
    Some(())
}

fn entries<'n, 's>(
    node: &'n YamlNode<'s>,
    what: &str,
    context: &mut CompileContext<'_, '_>,
) -> &'n [MappingEntry<'s>] {
    if let YamlValue::Mapping(entries) = &node.value {
        return entries;
    }
    let finding = Finding::error(node, format!("`{what}` must be a mapping, not {}", node.describe()));
    context.report.push(finding.hint("write each entry as `NAME: { requests: 100, window: 60 }`"));
    &[]
}

fn tiers<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Vec<Tier> {
    context.targets.tiers = NodeRef::from(node);
    let mut tiers = Vec::new();
    for MappingEntry { key, value } in entries(node, "tiers", context) {
        check_name(key, &key.text, context);
        let name = key.text.clone().into_owned();
        let unlimited = matches!(&value.value, YamlValue::Scalar { text, .. } if text == "unlimited");
        let rule = if unlimited { None } else { named_limit(value, &LIMIT, format!("tier:{name}"), context) };
        // An invalid tier would be unlimited here, but there is no plan then.
        tiers.push(Tier { name, rule });
    }
    tiers
}

fn endpoints<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Vec<EndpointRule> {
    // Keyed by the folded pattern: endpoints that differ only in what limits ignore match the same requests.
    let mut seen: HashMap<EndpointPattern, (EndpointPattern, u32)> = HashMap::new();
    let mut endpoints = Vec::new();
    for MappingEntry { key, value } in entries(node, "endpoints", context) {
        let hint = "remove it; the limit of an endpoint applies in addition to the others";
        if reject_unlimited(value, hint, context).is_none() {
            continue;
        }
        let pattern = endpoint_pattern(key, context);
        let name = match &pattern {
            Some(pattern) => format!("endpoint:{pattern}"),
            None => format!("endpoint:{}", key.text),
        };
        // Decode the rule of a duplicate under a unique name, so that its own problems are reported too.
        let line = key.position.line;
        let first = pattern
            .as_ref()
            .and_then(|pattern| seen.insert(pattern.folded(context.path_case), (pattern.clone(), line)));
        let name = if first.is_some() { format!("endpoint:\0{}", key.id) } else { name };
        let rule = named_limit(value, &ENDPOINT, name, context);
        if let Some((first, line)) = first {
            let finding = Finding::key_error(key, "another endpoint matches the same requests");
            let sensitive = |pattern: &EndpointPattern| pattern.folded(PathCase::Sensitive);
            let hint = if pattern.as_ref() == Some(&first) {
                format!("it is on line {line} and differs only in spelling; remove one of them")
            } else if pattern.as_ref().map(sensitive) == Some(sensitive(&first)) {
                format!("it is on line {line}, and limits ignore `;parameters`; remove one of them")
            } else {
                format!(
                    "it is on line {line}, and limits ignore case; remove one of them, or set `http.path_case: sensitive`"
                )
            };
            context.report.push(finding.hint(hint));
        }
        let (Some(pattern), Some(rule)) = (pattern, rule) else { continue };
        endpoints.push(EndpointRule { pattern, rule });
    }
    endpoints
}

/// Parses the pattern of an endpoint.
fn endpoint_pattern(key: &MappingKey<'_>, context: &mut CompileContext<'_, '_>) -> Option<EndpointPattern> {
    // Method checks take a node; build one from the key so that problems point at the key.
    let node = YamlNode {
        id: key.id,
        position: key.position,
        value: YamlValue::Scalar { text: key.text.clone(), quoted: true },
    };
    if let Some((method, _)) = key.text.trim().split_once(char::is_whitespace)
        && !method.starts_with('/')
    {
        scalar::method(&node, method, &mut context.report)?;
    }
    EndpointPattern::parse(&key.text)
        .map_err(|error| {
            let finding = Finding::key_error(key, error.to_string());
            context.report.push(finding.expected("a path, or a method and a path").hint(error.hint()));
        })
        .ok()
}

/// Decodes the limit `node` as the rule `name`.
pub(super) fn named_limit<'s>(
    node: &YamlNode<'s>,
    mapping: &'static Mapping,
    name: String,
    context: &mut CompileContext<'s, '_>,
) -> Option<Rule> {
    let fields = Fields::open(node, mapping, &mut context.report)?;
    rule(node, &fields, name, context)
}

/// Decodes the rule `name` with the limit of `fields`.
pub(super) fn rule<'s>(
    node: &YamlNode<'s>,
    fields: &Fields<'_, 's>,
    name: String,
    context: &mut CompileContext<'s, '_>,
) -> Option<Rule> {
    let id = claim(node, fields, &name, context);
    let mode = mode::mode(fields, &mut context.report);
    let is_reported = mode::report(fields, &mut context.report);
    let window = fields.get("window").and_then(scalar::peek_duration);
    let penalty = mode::penalty(fields, window, &mut context.report);
    let on_exceed = actions::on_exceed(fields, context);
    let borrow = match on_exceed {
        Some(ExceedAction::Borrow(borrow)) => Some(borrow),
        _ => None,
    };
    let limit = limit(node, fields, borrow, context);
    let algorithm = limit.as_ref().map(|(limit, _)| limit.algorithm());
    let sharing = store::sharing(node, fields, algorithm, context);
    let rejection = rejections::rejection(fields, context);
    let (limit, spec) = limit?;
    let (on_exceed, rejection) = (on_exceed?, rejection?);
    actions::check(fields, &on_exceed, limit.algorithm(), sharing, context);
    let limit = context.store.as_ref().map_or(limit, |store| store.part_of(limit, sharing));
    let (id, mode, penalty, is_reported) = (id?, mode?, penalty?, is_reported?);
    context.targets.rules.insert(id, NodeRef::from(node));
    let Spec { requests, window, burst, max_wait, .. } = spec;
    let (quota, line) = (Quota::new(&limit, &spec), node.position.line);
    Some(Rule {
        name,
        id,
        limit,
        requests,
        window,
        burst,
        max_wait,
        quota,
        mode,
        is_reported,
        penalty,
        on_exceed,
        rejection,
        sharing,
        line,
    })
}

/// Registers the rule `name` and returns its id; reports a conflict.
pub(super) fn claim<'s>(
    node: &YamlNode<'s>,
    fields: &Fields<'_, 's>,
    name: &str,
    context: &mut CompileContext<'s, '_>,
) -> Option<RuleId> {
    match context.names.claim(name, node.position.line) {
        Ok(id) => Some(id),
        Err(conflict) => {
            let (what, hint) = match conflict {
                NameConflict::Duplicate { line } => (
                    format!("duplicate rule {}", quote(name)),
                    format!("first defined on line {line}; rename one of them"),
                ),
                NameConflict::IdCollision { other } => (
                    format!("the names {} and {} have the same hash", quote(name), quote(&other)),
                    "rename one of them".to_owned(),
                ),
            };
            let at = fields.get("name").unwrap_or(node);
            context.report.push(Finding::error(at, what).hint(hint));
            None
        }
    }
}

fn limit<'s>(
    node: &YamlNode<'s>,
    fields: &Fields<'_, 's>,
    borrow: Option<Borrow>,
    context: &mut CompileContext<'s, '_>,
) -> Option<(Limit, Spec)> {
    let report = &mut context.report;
    let requests =
        fields.require("requests", report).and_then(|node| scalar::positive(node, "`requests`", report));
    let window = fields.require("window", report).and_then(|node| scalar::duration(node, report));
    let algorithm = fields.get_or("algorithm", Algorithm::SlidingCounter, |node| {
        scalar::choice(node, "algorithm", ALGORITHMS, &ALGORITHM_VALUES, report)
    });
    let burst = fields.get_or("burst", None, |node| scalar::count(node, report).map(Some))?;
    let max_wait = fields.get_or("max_wait", None, |node| scalar::duration(node, report).map(Some))?;
    let algorithm = algorithm?;
    // For any other algorithm the action is reported.
    let borrow = borrow.filter(|_| algorithm == Algorithm::TokenBucket);
    let spec = Spec { requests: requests?, window: window?, burst, max_wait, borrow };
    let error = match Limit::new(algorithm, spec) {
        Ok(limit) => return Some((limit, spec)),
        Err(error) => error,
    };
    let at = |key: &str| fields.get(key).unwrap_or(node);
    report.push(match &error {
        LimitError::NoBurst { algorithm } => {
            let finding = Finding::error(at("burst"), format!("`{algorithm}` does not support `burst`"));
            finding.hint("remove `burst`, or set `algorithm: token_bucket`")
        }
        LimitError::NoMaxWait { algorithm } => {
            let what = format!("`{algorithm}` does not support `max_wait`: it never delays requests");
            Finding::error(at("max_wait"), what).hint("remove `max_wait`, or set `algorithm: leaky_bucket`")
        }
        LimitError::ZeroBurst => {
            Finding::error(at("burst"), "`burst` must be at least 1").expected("a whole number of at least 1")
        }
        LimitError::NotRepresentable { .. } => {
            Finding::error(at("requests"), "this many requests per window cannot be counted exactly")
                .hint("use a smaller `requests`, a shorter `window` or rounder numbers")
        }
        LimitError::ZeroBorrow | LimitError::NoBorrow { .. } => {
            Finding::error(at("on_exceed"), error.to_string())
        }
        LimitError::ZeroRequests => Finding::error(at("requests"), error.to_string()),
        LimitError::ZeroWindow => Finding::error(at("window"), error.to_string()),
    });
    None
}

/// Reports a name that cannot be sent in a response header.
pub(super) fn check_name<'k>(
    at: impl Into<NameLocation<'k>>,
    name: &str,
    context: &mut CompileContext<'_, '_>,
) {
    let is_valid = (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    if !is_valid || name.contains(['"', '\\']) || name.trim() != name {
        let what = format!("invalid name {}", quote(name));
        let finding = match at.into() {
            NameLocation::Key(key) => Finding::key_error(key, what),
            NameLocation::Node(node) => Finding::error(node, what),
        };
        let finding = finding.expected("1 to 128 ASCII characters without quotes and backslashes");
        context.report.push(finding.hint("choose another name; it is sent to clients in a response header"));
    }
}

/// The key or value that contains a name.
pub(super) enum NameLocation<'k> {
    Key(&'k MappingKey<'k>),
    Node(&'k YamlNode<'k>),
}

impl<'k> From<&'k MappingKey<'k>> for NameLocation<'k> {
    fn from(key: &'k MappingKey<'k>) -> Self {
        Self::Key(key)
    }
}

impl<'k> From<&'k YamlNode<'k>> for NameLocation<'k> {
    fn from(node: &'k YamlNode<'k>) -> Self {
        Self::Node(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithm_names_match_the_values_in_order() {
        assert_eq!(ALGORITHM_VALUES.map(Algorithm::name), *ALGORITHMS);
        assert_eq!(ALGORITHM_VALUES.len(), Algorithm::ALL.len());
    }
}
