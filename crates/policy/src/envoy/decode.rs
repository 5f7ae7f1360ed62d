//! Decodes the files of a configuration, or reports all problems.

use std::collections::HashMap;

use tidegate_core::{Algorithm, Limit, LimitError, RuleId, Spec, TimeSpan};
use tidegate_headers::Quota;

use super::tree::{DescriptorLevel, DescriptorNode, EnvoyDomain};
use super::wildcard::WildcardPattern;
use super::{DescriptorLimit, EnvoyFile, EnvoyLimits, EnvoyRate, RateUnit, yaml11};
use crate::compile::{self, scalar};
use crate::language::{
    ALGORITHM_VALUES, ALGORITHMS, ENVOY_DESCRIPTOR, ENVOY_FILE, ENVOY_FLAGS, ENVOY_RATE_LIMIT, ENVOY_REPLACES,
};
use crate::problem::{Problem, Problems};
use crate::raw::{self, Fields, Finding, ProblemReport, SourcePosition, YamlNode, YamlValue, nearest};
use crate::render::quote;

/// The longest name in a response header.
const MAX_ANNOUNCED: usize = 128;

/// Reads all files.
pub(super) fn compile(files: &[EnvoyFile]) -> Result<EnvoyLimits, Problems> {
    let mut context = EnvoyContext::default();
    let mut problems: Vec<Problem> = Vec::new();
    let mut left_off = 0_usize;
    for EnvoyFile { name, bytes } in files {
        let found = match compile::text(name, bytes) {
            Ok(text) => context.file(name, text),
            Err(problems) => *problems,
        };
        left_off = left_off.saturating_add(found.left_off());
        problems.extend(found.iter().cloned());
    }
    if problems.is_empty() && left_off == 0 {
        return Ok(EnvoyLimits { domains: context.domains });
    }
    let first = files.first().map_or("", |file| &file.name);
    Err(Problems::new(problems, left_off, first))
}

/// `requests` per `unit × multiplier`. No requests are a limit that admits none.
pub(super) fn rate(
    algorithm: Algorithm,
    requests_per_unit: u32,
    unit: RateUnit,
    multiplier: u32,
) -> Result<EnvoyRate, LimitError> {
    let seconds = unit.span().as_secs_ceil().saturating_mul(u64::from(multiplier));
    let window = TimeSpan::from_secs(seconds);
    let limit = match requests_per_unit {
        0 => None,
        requests => {
            let mut spec = Spec::new(u64::from(requests), window);
            if algorithm == Algorithm::LeakyBucket {
                // No hit waits, so no wait is too long: the queue alone decides, and n hits fit exactly if n units are left.
                spec.max_wait = Some(window);
            }
            let limit = Limit::new(algorithm, spec)?;
            Some((limit, Quota::new(&limit, &spec)))
        }
    };
    Ok(EnvoyRate { requests_per_unit, unit, window, limit })
}

/// What the files of a configuration share.
#[derive(Default)]
struct EnvoyContext {
    domains: HashMap<String, EnvoyDomain>,
    /// The file that defines each domain.
    defined_in: HashMap<String, String>,
    labels: HashMap<RuleId, String>,
}

/// Where a descriptor is in the configuration.
#[derive(Clone)]
struct DescriptorPath {
    label: String,
    /// The keys, as response headers name them.
    keys: String,
}

/// How the limit of a descriptor affects a call.
#[derive(Clone, Copy)]
struct DescriptorModes {
    is_shadow: bool,
    is_quota: bool,
}

impl EnvoyContext {
    /// Reads one file. Returns its problems.
    fn file(&mut self, name: &str, text: &str) -> Problems {
        let mut report = ProblemReport::new(name, text);
        let root = raw::parse(text, &mut report).map(|root| yaml11::merge_keys(root, &mut report));
        match &root {
            Some(root) if !root.is_null() => self.domain(name, root, &mut report),
            _ if report.failed() => {}
            _ => {
                let at = SourcePosition { line: 1, column: 1, length: 1, offset: 0 };
                let finding = Finding::error_at(at, "the file is empty");
                report.push(finding.hint("start with `domain: NAME`, or remove the file"));
            }
        }
        report.finish(root.as_ref())
    }

    fn domain<'s>(&mut self, file: &str, root: &YamlNode<'s>, report: &mut ProblemReport<'s>) {
        let Some(fields) = Fields::open(root, &ENVOY_FILE, report) else { return };
        let name_node = fields.require("domain", report);
        let name = name_node.and_then(|node| scalar::text(node, "the name of a domain", report));
        let (mut domain, descriptors) = (EnvoyDomain::default(), fields.get("descriptors"));
        let path = DescriptorPath {
            label: format!("envoy:{}", escaped(name.unwrap_or_default())),
            keys: String::new(),
        };
        if let Some(node) = descriptors.filter(|node| !node.is_null()) {
            domain.root = self.level(node, &path, report);
        }
        let (Some(node), Some(name)) = (name_node, name) else { return };
        if let Some(first) = self.defined_in.insert(name.to_owned(), file.to_owned()) {
            let finding = Finding::error(node, format!("duplicate domain {}", quote(name)));
            report.push(finding.hint(format!("it is also in {first}; write one file for each domain")));
            return;
        }
        self.domains.insert(name.to_owned(), domain);
    }

    fn level<'s>(
        &mut self,
        node: &YamlNode<'s>,
        parent: &DescriptorPath,
        report: &mut ProblemReport<'s>,
    ) -> DescriptorLevel {
        let mut level = DescriptorLevel::default();
        let mut lines = HashMap::new();
        for node in scalar::list(node, "descriptors", report) {
            let Some(fields) = Fields::open(node, &ENVOY_DESCRIPTOR, report) else { continue };
            let key = fields.require("key", report).and_then(|node| scalar::text(node, "a key", report));
            let value = fields.get("value").and_then(|node| value(node, report));
            let path = parent.join(key.unwrap_or_default(), value);
            let descriptor = self.descriptor(&fields, value, &path, report);
            let Some(key) = key else { continue };
            let line = node.position.line;
            if let Some(first) = lines.insert((key.to_owned(), value.map(str::to_owned)), line) {
                let what = match value {
                    Some(value) => {
                        format!("duplicate descriptor {} with the value {}", quote(key), quote(value))
                    }
                    None => format!("duplicate descriptor {}", quote(key)),
                };
                report.push(
                    Finding::error(node, what)
                        .hint(format!("first defined on line {first}; remove one of them")),
                );
                continue;
            }
            level.insert(key, value, descriptor);
        }
        level
    }

    fn descriptor<'s>(
        &mut self,
        fields: &Fields<'_, 's>,
        value: Option<&str>,
        path: &DescriptorPath,
        report: &mut ProblemReport<'s>,
    ) -> DescriptorNode {
        let modes = DescriptorModes {
            is_shadow: flag(fields, "shadow_mode", report),
            is_quota: flag(fields, "quota_mode", report),
        };
        check_metadata(fields, report);
        flag(fields, "detailed_metric", report);
        flag(fields, "value_to_metric", report);
        let is_shared = flag(fields, "share_threshold", report);
        let is_wildcard = value.is_some_and(|value| value.contains('*'));
        if let (true, false, Some(at)) = (is_shared, is_wildcard, fields.get("share_threshold")) {
            let finding = Finding::error(at, "`share_threshold` needs a value with `*`");
            report.push(finding.hint("remove it, or add a `*` to `value`"));
        }
        let limit = fields
            .get("rate_limit")
            .filter(|node| !node.is_null())
            .and_then(|node| self.limit(node, path, modes, report));
        let children = fields.get("descriptors").filter(|node| !node.is_null());
        let children = children.map(|node| self.level(node, path, report)).unwrap_or_default();
        let shared_pattern = value.filter(|_| is_shared && is_wildcard).map(str::to_owned);
        DescriptorNode { limit, shared_pattern, children }
    }

    fn limit<'s>(
        &mut self,
        node: &YamlNode<'s>,
        path: &DescriptorPath,
        DescriptorModes { is_shadow, is_quota }: DescriptorModes,
        report: &mut ProblemReport<'s>,
    ) -> Option<DescriptorLimit> {
        let fields = Fields::open(node, &ENVOY_RATE_LIMIT, report)?;
        let name = fields.get("name").and_then(|node| scalar::text(node, "a name", report));
        let replaces = replaces(&fields, name, report);
        let rate = if flag(&fields, "unlimited", report) {
            if let Some(unit) = fields.get("unit") {
                let finding = Finding::error(unit, "an unlimited descriptor has no unit");
                report.push(finding.hint("remove `unit`, or remove `unlimited`"));
            }
            None
        } else {
            Some(decode_rate(node, &fields, report)?)
        };
        let rule = RuleId::named(&path.label);
        if let Some(other) = self.labels.insert(rule, path.label.clone())
            && other != path.label
        {
            let what = format!("{} and {} have the same hash", quote(&path.label), quote(&other));
            report.push(Finding::error(node, what).hint("rename one of them"));
        }
        let announced = announced(name.unwrap_or(&path.keys));
        let (label, name) = (path.label.clone(), name.map(str::to_owned));
        Some(DescriptorLimit { rule, label, announced, name, replaces, is_shadow, is_quota, rate })
    }
}

impl DescriptorPath {
    fn join(&self, key: &str, value: Option<&str>) -> Self {
        let mut label = format!("{}/{}", self.label, escaped(key));
        if let Some(value) = value {
            label.push('=');
            label.push_str(&escaped(value));
        }
        let separator = if self.keys.is_empty() { "" } else { "." };
        Self { label, keys: format!("{}{separator}{key}", self.keys) }
    }
}

impl DescriptorLevel {
    fn insert(&mut self, key: &str, value: Option<&str>, descriptor: DescriptorNode) {
        let descriptors = self.keys.entry_ref(key).or_default();
        let position = descriptors.nodes.len();
        descriptors.nodes.push(descriptor);
        let Some(value) = value else {
            descriptors.bare = Some(position);
            return;
        };
        descriptors.by_value.insert(value.to_owned(), position);
        if let Some(pattern) = WildcardPattern::parse(value) {
            descriptors.wildcards.push((pattern, position));
        }
    }
}

/// A value; an empty one is none, as in the reference server.
fn value<'n>(node: &'n YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<&'n str> {
    match &node.value {
        YamlValue::Scalar { text, quoted } => {
            Some(&**text).filter(|text| !text.is_empty() && (*quoted || !node.is_null()))
        }
        _ => scalar::text(node, "a text", report),
    }
}

fn flag(fields: &Fields<'_, '_>, key: &str, report: &mut ProblemReport<'_>) -> bool {
    let flag = fields.get(key).and_then(|node| {
        let choice =
            || scalar::choice(node, &format!("value of `{key}`"), ENVOY_FLAGS, &[true, false], report);
        yaml11::flag(node).or_else(choice)
    });
    flag.unwrap_or(false)
}

/// Metadata has any keys. The reference server sends it only if its environment enables that.
fn check_metadata<'s>(fields: &Fields<'_, 's>, report: &mut ProblemReport<'s>) {
    let Some(node) = fields.get("metadata").filter(|node| !node.is_null()) else { return };
    if !matches!(node.value, YamlValue::Mapping(_)) {
        let finding = Finding::error(node, "`metadata` is not a mapping");
        report.push(finding.hint("write `metadata: { name: value }`, or remove it"));
    }
}

fn replaces<'s>(fields: &Fields<'_, 's>, own: Option<&str>, report: &mut ProblemReport<'s>) -> Vec<String> {
    let Some(node) = fields.get("replaces").filter(|node| !node.is_null()) else { return Vec::new() };
    let mut names = Vec::new();
    for node in scalar::list(node, "limits", report) {
        let Some(fields) = Fields::open(node, &ENVOY_REPLACES, report) else { continue };
        let name = fields.require("name", report);
        let Some((node, name)) = name.and_then(|node| Some((node, scalar::text(node, "a name", report)?)))
        else {
            continue;
        };
        if own == Some(name) {
            let finding = Finding::error(node, "a limit cannot replace itself");
            report.push(finding.hint("name the limit that it replaces"));
        }
        names.push(name.to_owned());
    }
    names
}

fn decode_rate<'s>(
    node: &YamlNode<'s>,
    fields: &Fields<'_, 's>,
    report: &mut ProblemReport<'s>,
) -> Option<EnvoyRate> {
    let unit = fields.require("unit", report).and_then(|node| unit(node, report));
    let requests = fields.require("requests_per_unit", report);
    let requests = requests.and_then(|node| scalar::count_u32(&yaml11::decimal(node), report));
    let multiplier = fields.get_or("unit_multiplier", 1, |node| {
        scalar::positive_u32(&yaml11::decimal(node), "`unit_multiplier`", report)
    });
    let algorithm = fields.get_or("algorithm", Algorithm::FixedWindow, |node| {
        scalar::choice(node, "algorithm", ALGORITHMS, &ALGORITHM_VALUES, report)
    });
    let rate = rate(algorithm?, requests?, unit?, multiplier?);
    rate.map_err(|_| {
        let at = fields.get("requests_per_unit").unwrap_or(node);
        let finding = Finding::error(at, "this many requests per window cannot be counted exactly");
        report.push(
            finding
                .hint("use fewer requests, a shorter window, rounder numbers or `algorithm: fixed_window`"),
        );
    })
    .ok()
}

/// Decodes a unit; its case does not matter, as in the reference server.
fn unit(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<RateUnit> {
    let text = scalar::text(node, &format!("one of {}", RateUnit::NAMES.join(", ")), report)?;
    let found = RateUnit::NAMES.iter().position(|name| name.eq_ignore_ascii_case(text));
    let found = found.and_then(|position| RateUnit::ALL.get(position)).copied();
    if found.is_none() {
        let finding = Finding::error(node, format!("unknown unit {}", quote(text)));
        let finding = finding.expected(format!("one of {}", RateUnit::NAMES.join(", ")));
        report.push(finding.did_you_mean(nearest(text, RateUnit::NAMES.iter().copied())));
    }
    found
}

/// Escapes the characters that separate the parts of a label, so that no two paths have the same label.
fn escaped(text: &str) -> String {
    let mut label = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '%' => label.push_str("%25"),
            '/' => label.push_str("%2F"),
            '=' => label.push_str("%3D"),
            character => label.push(character),
        }
    }
    label
}

/// The name as a response header can contain it.
fn announced(text: &str) -> String {
    let allowed = |c: char| (c.is_ascii_graphic() || c == ' ') && c != '"' && c != '\\';
    let name: String = text.chars().take(MAX_ANNOUNCED).map(|c| if allowed(c) { c } else { '_' }).collect();
    name.trim().to_owned()
}
