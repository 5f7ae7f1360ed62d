//! Decodes `rate_limits.rules`.

use std::sync::Arc;

use http::header::HeaderName;
use tidegate_core::{Coordination, Cost, LimitUnit};

use crate::compile::{CompileContext, clients, costs, limits, mode, rejections, routing, scalar, store};
use crate::endpoints::EndpointPattern;
use crate::expression::Expression;
use crate::identity::ClientKind;
use crate::language::{EVERYBODY, MATCH, RULE, RULE_USER};
use crate::plan::{
    ChargeBasis, Clients, ConcurrencyRule, CounterScope, CustomRule, HeaderMatch, RuleCondition, RuleCost,
    RuleMatch,
};
use crate::raw::{Fields, Finding, NodeRef, YamlNode, YamlValue};
use crate::render::quote;

pub(super) fn rules<'s>(
    node: &YamlNode<'s>,
    clients: Option<&Clients>,
    context: &mut CompileContext<'s, '_>,
) -> (Vec<CustomRule>, Vec<ConcurrencyRule>) {
    let (mut rates, mut concurrent) = (Vec::new(), Vec::new());
    for item in scalar::list(node, "rules", &mut context.report) {
        let Some(fields) = Fields::open(item, &RULE, &mut context.report) else { continue };
        let scope = RuleScope::read(&fields, clients, context);
        if fields.get("concurrent").is_some() {
            concurrent.extend(concurrency_rule(item, &fields, scope, context));
        } else {
            rates.extend(custom(item, &fields, scope, context));
        }
    }
    (rates, concurrent)
}

/// The name of a rule, where it applies and what it counts by. Invalid parts are `None`.
struct RuleScope {
    name: Option<String>,
    matches: Option<RuleMatch>,
    count: Option<CounterScope>,
    /// The field that names the user; invalid ones have been reported.
    body_user: Option<String>,
}

impl RuleScope {
    fn read<'s>(
        fields: &Fields<'_, 's>,
        clients: Option<&Clients>,
        context: &mut CompileContext<'s, '_>,
    ) -> Self {
        let name = fields.require("name", &mut context.report).and_then(|node| name(node, context));
        let matches = fields.get_or("match", RuleMatch::default(), |node| matching(node, context));
        let known = context.configured.len();
        // The rule says itself where the user is.
        context.configured.extend(fields.get("user").map(|_| ClientKind::User));
        let count = count(fields, clients, context);
        context.configured.truncate(known);
        let body_user =
            fields.get("user").and_then(|node| body_user(node, (matches.as_ref(), count.as_ref()), context));
        Self { name, matches, count, body_user }
    }

    /// Returns a unique placeholder for a missing name, so that the other problems of the rule are reported too.
    fn name_or_placeholder(&self, item: &YamlNode<'_>) -> String {
        self.name.clone().unwrap_or_else(|| format!("\0{}", item.id))
    }
}

/// Decodes a rule with `concurrent`.
fn concurrency_rule<'s>(
    item: &YamlNode<'s>,
    fields: &Fields<'_, 's>,
    scope: RuleScope,
    context: &mut CompileContext<'s, '_>,
) -> Option<ConcurrencyRule> {
    for key in [
        "user",
        "requests",
        "window",
        "algorithm",
        "burst",
        "max_wait",
        "cost",
        "charge",
        "penalty",
        "on_exceed",
    ] {
        if let Some(node) = fields.get(key) {
            let what = format!("`{key}` cannot be combined with `concurrent`");
            context.report.push(Finding::error(node, what).hint("use two rules, one for each"));
        }
    }
    let id = limits::claim(item, fields, &scope.name_or_placeholder(item), context);
    let mode = mode::mode(fields, &mut context.report);
    let is_reported = mode::report(fields, &mut context.report);
    let concurrent = fields
        .get("concurrent")
        .and_then(|node| scalar::positive_u32(node, "`concurrent`", &mut context.report));
    let sharing = store::permit_sharing(fields, context);
    let rejection = rejections::rejection(fields, context);
    let RuleScope { name, matches, count, .. } = scope;
    let (id, name) = (id?, name?);
    context.targets.rules.insert(id, NodeRef::from(item));
    let (mut concurrent, mode, line) = (concurrent?, mode?, item.position.line);
    let is_reported = is_reported?;
    if sharing.is_some_and(|sharing| sharing.coordination == Coordination::Static)
        && let Some(store) = &context.store
    {
        // A node without a permit would reject everything.
        concurrent = (concurrent / store.nodes).max(1);
    }
    Some(ConcurrencyRule {
        name,
        id,
        concurrent,
        mode,
        is_reported,
        matches: matches?,
        count: count?,
        rejection: rejection?,
        sharing,
        line,
    })
}

fn custom<'s>(
    item: &YamlNode<'s>,
    fields: &Fields<'_, 's>,
    scope: RuleScope,
    context: &mut CompileContext<'s, '_>,
) -> Option<CustomRule> {
    let cost = costs::cost(fields, context);
    let charge = costs::charge(fields, context);
    let mut rule = limits::rule(item, fields, scope.name_or_placeholder(item), context)?;
    let RuleScope { name, matches, count, body_user } = scope;
    costs::check(fields, &rule, cost.as_ref(), charge.as_ref(), context);
    if let (Some(CounterScope::Everybody), Some(node)) = (&count, fields.get("penalty")) {
        let finding = Finding::error(
            node,
            "`penalty` would lock out all clients: the rule has one counter for everybody",
        );
        context
            .report
            .push(finding.hint("count each client, for example with `per: ip`, or remove `penalty`"));
    }
    name?;
    let (cost, charge) = (cost?, charge?);
    rule.quota = rule.quota.with_unit(limit_unit(&cost, &charge));
    Some(CustomRule { rule, matches: matches?, count: count?, cost, charge, body_user })
}

/// Returns the unit that a rule with these costs counts in.
fn limit_unit(cost: &RuleCost, charge: &ChargeBasis) -> LimitUnit {
    match (cost, charge) {
        (RuleCost::Body(bytes), _) => LimitUnit::ContentBytes(*bytes),
        (RuleCost::Constant(Cost::ONE), ChargeBasis::UpFront | ChargeBasis::Status(_)) => LimitUnit::Requests,
        _ => LimitUnit::Cost,
    }
}

/// Decodes a rule name that is not reserved.
fn name(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<String> {
    let text = scalar::text(node, "a name, for example `login-bruteforce`", &mut context.report)?;
    limits::check_name(node, text, context);
    let reserved = matches!(text, "global" | "tenant" | "default");
    if reserved || text.starts_with("tier:") || text.starts_with("endpoint:") {
        let finding = Finding::error(node, format!("the name {} is reserved", quote(text)));
        context.report.push(finding.hint(
            "choose another name; `global`, `tenant`, `default`, `tier:` and `endpoint:` name other limits",
        ));
        return None;
    }
    Some(text.to_owned())
}

fn matching<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Option<RuleMatch> {
    let fields = Fields::open(node, &MATCH, &mut context.report)?;
    let mut matches = RuleMatch::default();
    if let Some(node) = fields.get("method") {
        for item in scalar::one_or_many(node, "method", &mut context.report) {
            let text = scalar::text(item, "a method, for example `POST`", &mut context.report);
            let method = text.and_then(|text| scalar::method(item, text, &mut context.report));
            matches.methods.extend(method.map(str::to_owned));
        }
    }
    if let Some(node) = fields.get("path") {
        let items = scalar::one_or_many(node, "path", &mut context.report);
        matches.paths = items.iter().filter_map(|item| routing::path(item, &mut context.report)).collect();
    }
    if let Some(node) = fields.get("header") {
        matches.headers = headers(node, context);
    }
    matches.when = fields.get("when").and_then(|node| when(node, context));
    Some(matches)
}

fn headers(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Vec<HeaderMatch> {
    let YamlValue::Mapping(entries) = &node.value else {
        let finding = Finding::error(node, format!("`header` must be a mapping, not {}", node.describe()));
        context.report.push(finding.hint("for example `{ X-Plan: trial }`"));
        return Vec::new();
    };
    let mut headers = Vec::new();
    for entry in entries {
        if !scalar::is_token(&entry.key.text) {
            let finding =
                Finding::key_error(&entry.key, format!("invalid header name {}", quote(&entry.key.text)));
            context.report.push(finding.hint("for example `X-Plan`"));
            continue;
        }
        let items = scalar::one_or_many(&entry.value, "value", &mut context.report);
        let values: Vec<_> =
            items.iter().filter_map(|item| scalar::text(item, "a string", &mut context.report)).collect();
        let any = values.contains(&"*");
        let values = if any { Vec::new() } else { values.into_iter().map(str::to_owned).collect() };
        let name = header_name(&entry.key.text, &entry.value, context);
        headers.extend(name.map(|name| HeaderMatch { name, values }));
    }
    headers
}

/// Converts a token to a header name; reports one that is too long.
pub(super) fn header_name(
    name: &str,
    at: &YamlNode<'_>,
    context: &mut CompileContext<'_, '_>,
) -> Option<HeaderName> {
    HeaderName::from_bytes(name.as_bytes())
        .map_err(|error| {
            let finding = Finding::error(at, format!("invalid header name {}: {error}", quote(name)));
            context.report.push(finding.hint("for example `X-Plan`"));
        })
        .ok()
}

fn when(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<RuleCondition> {
    let source =
        scalar::text(node, "a CEL expression, for example `request.method == \"GET\"`", &mut context.report)?;
    match Expression::compile_within(source, &mut context.expressions) {
        Ok(expression) => Some(RuleCondition { source: source.to_owned(), expression: Arc::new(expression) }),
        Err(error) => {
            let position =
                error.position().and_then(|at| context.report.within(node, source, at.line, at.column));
            let finding =
                Finding::error(node, first_and_last_line(&error.what())).expected("a CEL expression");
            context.report.push(finding.at(position).hint(error.hint()));
            None
        }
    }
}

/// Shortens a parser message of several lines to its first and last line; the lines between draw an excerpt.
fn first_and_last_line(what: &str) -> String {
    let mut lines = what.lines().map(str::trim);
    match (lines.next(), lines.next_back()) {
        (Some(first), Some(last)) => format!("{first} {last}"),
        (first, _) => first.unwrap_or_default().to_owned(),
    }
}

/// Decodes `user`: the field of a body. `None` parts of the rule have been reported.
fn body_user<'s>(
    node: &YamlNode<'s>,
    (matches, count): (Option<&RuleMatch>, Option<&CounterScope>),
    context: &mut CompileContext<'s, '_>,
) -> Option<String> {
    let fields = Fields::open(node, &RULE_USER, &mut context.report)?;
    let field = fields.require("body", &mut context.report)?;
    let name = scalar::text(field, "the name of a field, for example `username`", &mut context.report)?;
    if name.trim() != name || name.contains(['[', ']', '&', '=', ';']) || name.chars().any(char::is_control) {
        let finding = Finding::error(field, format!("invalid field name {}", quote(name)));
        context.report.push(
            finding
                .hint("write the name of a field at the top of the form or object, for example `username`"),
        );
    }
    if let Some(matches) = matches
        && (matches.paths.is_empty() || matches.paths.iter().any(EndpointPattern::matches_rest))
    {
        let finding = Finding::error(node, "`user` needs the paths of the endpoints whose bodies are read");
        let finding = finding.expected("`match.path` without `**`");
        context.report.push(finding.hint("name them: `match: { method: POST, path: /login }`"));
    }
    if let Some(count) = count
        && !matches!(count, CounterScope::Per(kinds) | CounterScope::PerEach(kinds) if kinds.contains(&ClientKind::User))
    {
        let finding = Finding::error(node, "`user` has no effect: the rule does not count users");
        context.report.push(finding.hint("add `per_each: [ip, user]`, or remove `user`"));
    }
    Some(name.to_owned())
}

fn count<'s>(
    fields: &Fields<'_, 's>,
    known: Option<&Clients>,
    context: &mut CompileContext<'s, '_>,
) -> Option<CounterScope> {
    // Problems of `clients` have been reported; do not report them at the rule again.
    let fallback = Clients { accepts_unverified_keys: true, ..Clients::default() };
    let known = known.unwrap_or(&fallback);
    let (per, per_each) = (fields.get("per"), fields.get("per_each"));
    if per_each.is_none() && per.is_some_and(is_everybody) {
        return Some(CounterScope::Everybody);
    }
    for node in [per, per_each].into_iter().flatten() {
        if let Some(everybody) = find_misspelt_everybody(node) {
            let finding = if is_everybody(everybody) {
                Finding::error(everybody, format!("`{EVERYBODY}` cannot be combined with other identities"))
            } else {
                Finding::error(everybody, "unknown identity")
            };
            let hint = format!("write `per: {EVERYBODY}` for one counter shared by all clients");
            context.report.push(finding.hint(hint));
            return None;
        }
    }
    let mut identities = |node| clients::identities(node, known, context);
    match (per, per_each) {
        (None, None) => Some(CounterScope::Client),
        (Some(node), None) => Some(CounterScope::Per(identities(node))),
        (None, Some(node)) => Some(CounterScope::PerEach(identities(node))),
        (Some(per), Some(each)) => {
            identities(per);
            identities(each);
            let finding = Finding::error(each, "`per` and `per_each` cannot be combined");
            let hint = "remove one of them: `per` has one counter for each combination, `per_each` one for each identity";
            context.report.push(finding.hint(hint));
            None
        }
    }
}

/// Finds a value that means `everybody` but is in a list or spelled differently.
fn find_misspelt_everybody<'n, 's>(node: &'n YamlNode<'s>) -> Option<&'n YamlNode<'s>> {
    let means = |node: &&YamlNode<'_>| match &node.value {
        YamlValue::Scalar { text, .. } => {
            ["all", "global", "anybody", "anyone", "everyone"].contains(&&**text)
                || strsim::damerau_levenshtein(text, EVERYBODY) <= 2
        }
        _ => false,
    };
    match &node.value {
        YamlValue::List(items) => items.iter().find(means),
        _ => Some(node).filter(means),
    }
}

fn is_everybody(node: &YamlNode<'_>) -> bool {
    matches!(&node.value, YamlValue::Scalar { text, .. } if text == EVERYBODY)
}
