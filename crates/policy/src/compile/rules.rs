//! Rules of the operator's own.

use std::sync::Arc;

use http::header::HeaderName;
use tidegate_core::{Cost, LimitUnit};

use crate::compile::{Context, clients, costs, limits, mode, routing, scalar};
use crate::expression::Expression;
use crate::language::{EVERYBODY, MATCH, RULE};
use crate::plan::{
    Charge, Clients, ConcurrencyRule, CounterScope, CustomRule, HeaderMatch, RuleCondition, RuleCost,
    RuleMatch,
};
use crate::raw::{Fields, Finding, Mark, Node, Value};
use crate::render::quote;

pub(super) fn rules<'s>(
    node: &Node<'s>,
    clients: Option<&Clients>,
    context: &mut Context<'s, '_>,
) -> (Vec<CustomRule>, Vec<ConcurrencyRule>) {
    let (mut rates, mut concurrent) = (Vec::new(), Vec::new());
    for item in scalar::list(node, "rules", &mut context.report) {
        let Some(fields) = Fields::open(item, &RULE, &mut context.report) else { continue };
        let whom = Whom::read(&fields, clients, context);
        if fields.get("concurrent").is_some() {
            concurrent.extend(concurrency_checks(item, &fields, whom, context));
        } else {
            rates.extend(custom(item, &fields, whom, context));
        }
    }
    (rates, concurrent)
}

/// What every rule says of itself. What could not be read is `None`.
struct Whom {
    name: Option<String>,
    matches: Option<RuleMatch>,
    count: Option<CounterScope>,
}

impl Whom {
    fn read<'s>(fields: &Fields<'_, 's>, clients: Option<&Clients>, context: &mut Context<'s, '_>) -> Self {
        let name = fields.require("name", &mut context.report).and_then(|node| name(node, context));
        let matches = match fields.get("match") {
            Some(node) => matching(node, context),
            None => Some(RuleMatch::default()),
        };
        Self { name, matches, count: count(fields, clients, context) }
    }

    /// A rule without a name is still read, so that its other problems are seen.
    fn name_or_number(&self, item: &Node<'_>) -> String {
        self.name.clone().unwrap_or_else(|| format!("\0{}", item.id))
    }
}

/// So many requests at once.
fn concurrency_checks<'s>(
    item: &Node<'s>,
    fields: &Fields<'_, 's>,
    whom: Whom,
    context: &mut Context<'s, '_>,
) -> Option<ConcurrencyRule> {
    for key in ["requests", "window", "algorithm", "burst", "max_wait", "cost", "charge", "penalty"] {
        if let Some(node) = fields.get(key) {
            let what =
                format!("`{key}` has no place pending_cost `concurrent`, which counts requests under way");
            context.report.push(Finding::error(node, what).hint("make two rules: one for each"));
        }
    }
    let id = limits::claim(item, fields, &whom.name_or_number(item), context);
    let mode = mode::mode(fields, &mut context.report);
    let concurrent = fields.get("concurrent").and_then(|node| {
        let count = scalar::positive(node, "at once would let nothing pass", &mut context.report)?;
        let fits = u32::try_from(count).ok();
        if fits.is_none() {
            let finding = Finding::error(node, format!("{count} is too large"));
            context.report.push(finding.expected(format!("at most {}", u32::MAX)));
        }
        fits
    });
    let Whom { name, matches, count } = whom;
    let (id, name) = (id?, name?);
    context.marks.rules.insert(id, Mark::from(item));
    let (concurrent, mode, line) = (concurrent?, mode?, item.place.line);
    Some(ConcurrencyRule { name, id, concurrent, mode, matches: matches?, count: count?, line })
}

fn custom<'s>(
    item: &Node<'s>,
    fields: &Fields<'_, 's>,
    whom: Whom,
    context: &mut Context<'s, '_>,
) -> Option<CustomRule> {
    let cost = costs::cost(fields, context);
    let charge = costs::charge(fields, context);
    let mut rule = limits::rule(item, fields, whom.name_or_number(item), context)?;
    let Whom { name, matches, count } = whom;
    costs::check(fields, &rule, (cost.as_ref(), charge.as_ref()), context);
    if let (Some(CounterScope::Everybody), Some(node)) = (&count, fields.get("penalty")) {
        let finding = Finding::error(node, "a lock-out of everybody: the rule counts all clients together");
        context.report.push(finding.hint("say whom it counts, such as `per: ip`, or remove the penalty"));
    }
    name?;
    let (cost, charge) = (cost?, charge?);
    rule.quota = rule.quota.with_unit(limit_unit(&cost, &charge));
    Some(CustomRule { rule, matches: matches?, count: count?, cost, charge })
}

/// What a rule with these costs counts.
fn limit_unit(cost: &RuleCost, charge: &Charge) -> LimitUnit {
    match (cost, charge) {
        (RuleCost::Body(bytes), _) => LimitUnit::ContentBytes(*bytes),
        (RuleCost::Constant(Cost::ONE), Charge::UpFront | Charge::Status(_)) => LimitUnit::Requests,
        _ => LimitUnit::Cost,
    }
}

/// A name that is not taken by the limits with a place of their own.
fn name(node: &Node<'_>, context: &mut Context<'_, '_>) -> Option<String> {
    let text = scalar::text(node, "a name, such as `login-bruteforce`", &mut context.report)?;
    limits::check_name(node, text, context);
    let reserved = matches!(text, "global" | "tenant" | "default");
    if reserved || text.starts_with("tier:") || text.starts_with("endpoint:") {
        let finding = Finding::error(
            node,
            format!("the name {} is taken by a limit with a place of its own", quote(text)),
        );
        context.report.push(finding.hint("choose another name"));
        return None;
    }
    Some(text.to_owned())
}

fn matching<'s>(node: &Node<'s>, context: &mut Context<'s, '_>) -> Option<RuleMatch> {
    let fields = Fields::open(node, &MATCH, &mut context.report)?;
    let mut matches = RuleMatch::default();
    if let Some(node) = fields.get("method") {
        for item in scalar::one_or_many(node, "method", &mut context.report) {
            let text = scalar::text(item, "a method, such as `POST`", &mut context.report);
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

fn headers(node: &Node<'_>, context: &mut Context<'_, '_>) -> Vec<HeaderMatch> {
    let Value::Mapping(entries) = &node.value else {
        let finding = Finding::error(node, format!("`header` must be a mapping, not {}", node.describe()));
        context.report.push(finding.hint("write it like `{ X-Plan: trial }`"));
        return Vec::new();
    };
    let mut headers = Vec::new();
    for entry in entries {
        if !scalar::is_token(&entry.key.text) {
            let finding = Finding::key_error(
                &entry.key,
                format!("{} cannot be a header's name", quote(&entry.key.text)),
            );
            context.report.push(finding.hint("write it like `X-Plan`"));
            continue;
        }
        let items = scalar::one_or_many(&entry.value, "value", &mut context.report);
        let values: Vec<_> =
            items.iter().filter_map(|item| scalar::text(item, "a text", &mut context.report)).collect();
        let any = values.contains(&"*");
        let values = if any { Vec::new() } else { values.into_iter().map(str::to_owned).collect() };
        let name = header_name(&entry.key.text, &entry.value, context);
        headers.extend(name.map(|name| HeaderMatch { name, values }));
    }
    headers
}

/// A name that is a token is a header's name, unless it is absurdly long.
pub(super) fn header_name(name: &str, at: &Node<'_>, context: &mut Context<'_, '_>) -> Option<HeaderName> {
    HeaderName::from_bytes(name.as_bytes())
        .map_err(|error| {
            let finding = Finding::error(at, format!("{} cannot be a header's name: {error}", quote(name)));
            context.report.push(finding.hint("write it like `X-Plan`"));
        })
        .ok()
}

fn when(node: &Node<'_>, context: &mut Context<'_, '_>) -> Option<RuleCondition> {
    let source =
        scalar::text(node, "a CEL expression, such as `request.method == \"GET\"`", &mut context.report)?;
    match Expression::compile(source) {
        Ok(expression) => Some(RuleCondition { source: source.to_owned(), expression: Arc::new(expression) }),
        Err(error) => {
            let place =
                error.position().and_then(|at| context.report.within(node, source, (at.line, at.column)));
            let finding = Finding::error(node, first_line(&error.what())).expected("a CEL expression");
            context.report.push(finding.at(place).hint(error.hint()));
            None
        }
    }
}

/// What a parser says over several lines is drawn for a terminal of its own; its last line says what it is about.
fn first_line(what: &str) -> String {
    let mut lines = what.lines().map(str::trim);
    match (lines.next(), lines.next_back()) {
        (Some(first), Some(last)) => format!("{first} {last}"),
        (first, _) => first.unwrap_or_default().to_owned(),
    }
}

fn count<'s>(
    fields: &Fields<'_, 's>,
    known: Option<&Clients>,
    context: &mut Context<'s, '_>,
) -> Option<CounterScope> {
    // What is wrong with `clients` has been reported, and is not held against the rule.
    let fallback = Clients { accepts_unverified_keys: true, ..Clients::default() };
    let known = known.unwrap_or(&fallback);
    let (per, per_each) = (fields.get("per"), fields.get("per_each"));
    if per_each.is_none() && per.is_some_and(is_everybody) {
        return Some(CounterScope::Everybody);
    }
    for node in [per, per_each].into_iter().flatten() {
        if let Some(everybody) = meant_for_everybody(node) {
            let finding = if is_everybody(everybody) {
                Finding::error(everybody, format!("`{EVERYBODY}` stands by itself"))
            } else {
                Finding::error(everybody, "there is no such identity")
            };
            let hint = format!("write `per: {EVERYBODY}`: one counter for all clients together");
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
            let finding = Finding::error(each, "a rule has `per` or `per_each`, not both");
            let hint =
                "`per` is one counter for each combination, `per_each` a counter for each alone; keep one";
            context.report.push(finding.hint(hint));
            None
        }
    }
}

/// What was meant for `everybody`, but is in a list or spelled in another way.
fn meant_for_everybody<'n, 's>(node: &'n Node<'s>) -> Option<&'n Node<'s>> {
    let means = |node: &&Node<'_>| match &node.value {
        Value::Scalar { text, .. } => {
            ["all", "global", "anybody", "anyone", "everyone"].contains(&&**text)
                || strsim::damerau_levenshtein(text, EVERYBODY) <= 2
        }
        _ => false,
    };
    match &node.value {
        Value::List(items) => items.iter().find(means),
        _ => Some(node).filter(means),
    }
}

fn is_everybody(node: &Node<'_>) -> bool {
    matches!(&node.value, Value::Scalar { text, .. } if text == EVERYBODY)
}
