//! What a request costs, and when that is known.

use http::header::HeaderName;
use tidegate_core::{Algorithm, Cost};

use crate::compile::{CompileContext, rules, scalar};
use crate::language::{AFTER, CHARGE, COST};
use crate::plan::{Charge, Rule, RuleCost, Statuses};
use crate::raw::{Fields, Finding, YamlNode, YamlValue};
use crate::render::quote;

/// What a request costs the rule with these keys.
pub(super) fn cost<'s>(fields: &Fields<'_, 's>, context: &mut CompileContext<'s, '_>) -> Option<RuleCost> {
    let Some(node) = fields.get("cost") else { return Some(RuleCost::Constant(Cost::ONE)) };
    if let YamlValue::Mapping(_) = &node.value {
        let fields = Fields::open(node, &COST, &mut context.report)?;
        return match one_of(node, &fields, ["header", "body"], context)? {
            ("header", node) => header(node, context).map(RuleCost::Header),
            (_, node) => {
                let bytes = scalar::size(node, &mut context.report)?;
                if bytes == 0 {
                    let finding = Finding::error(node, "nothing can be counted in units of 0 bytes");
                    context.report.push(finding.expected("a size such as `1KiB`"));
                    return None;
                }
                Some(RuleCost::Body(bytes))
            }
        };
    }
    let cost = scalar::positive(node, "would make requests free", &mut context.report)?;
    Some(RuleCost::Constant(Cost::new(cost)))
}

/// When the rule with these keys charges.
pub(super) fn charge<'s>(fields: &Fields<'_, 's>, context: &mut CompileContext<'s, '_>) -> Option<Charge> {
    let Some(node) = fields.get("charge") else { return Some(Charge::UpFront) };
    let fields = Fields::open(node, &CHARGE, &mut context.report)?;
    let after = fields.require("after", &mut context.report)?;
    let fields = Fields::open(after, &AFTER, &mut context.report)?;
    match one_of(after, &fields, ["status", "header"], context)? {
        ("header", node) => header(node, context).map(Charge::Header),
        (_, node) => statuses(node, context).map(Charge::Status),
    }
}

/// Reports what cannot go together: a limit that no request fits, and charges that could not be settled.
pub(super) fn check<'s>(
    fields: &Fields<'_, 's>,
    rule: &Rule,
    (cost, charge): (Option<&RuleCost>, Option<&Charge>),
    context: &mut CompileContext<'s, '_>,
) {
    if let (Some(RuleCost::Constant(cost)), Some(node)) = (cost, fields.get("cost"))
        && cost.get() > rule.limit.capacity()
    {
        let finding = Finding::error(node, "a request costs more than the whole limit: none would ever pass");
        context.report.push(finding.expected(format!("at most {}", rule.limit.capacity())));
    }
    let Some(node) = fields.get("charge").filter(|_| charge.is_some()) else { return };
    if let Some(RuleCost::Body(_)) = cost {
        let finding = Finding::error(node, "what the body costs is not settled by the response too");
        context.report.push(finding.hint("make two rules, or let `cost` be what is reserved"));
    }
    if rule.algorithm() == Algorithm::LeakyBucket {
        let finding = Finding::error(node, "`leaky_bucket` cannot give back what others already wait behind");
        context.report.push(finding.hint("use `token_bucket` or a sliding window"));
    }
}

/// The one of two keys that is there.
fn one_of<'n, 's>(
    node: &'n YamlNode<'s>,
    fields: &Fields<'n, 's>,
    keys: [&'static str; 2],
    context: &mut CompileContext<'s, '_>,
) -> Option<(&'static str, &'n YamlNode<'s>)> {
    let [first, second] = keys;
    match (fields.get(first), fields.get(second)) {
        (Some(node), None) => Some((first, node)),
        (None, Some(node)) => Some((second, node)),
        (None, None) if fields.is_misspelt() => None,
        (None, None) => {
            let finding = Finding::error(node, format!("neither `{first}` nor `{second}` stands here"));
            context.report.push(finding.hint("write one of them"));
            None
        }
        (Some(_), Some(other)) => {
            let finding = Finding::error(other, format!("`{first}` and `{second}` do not go together"));
            context.report.push(finding.hint("keep one"));
            None
        }
    }
}

fn header(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<HeaderName> {
    let name = scalar::header(node, &mut context.report)?;
    rules::header_name(&name, node, context)
}

fn statuses(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<Statuses> {
    const EXPECTED: &str = "a status such as 401, or a class such as `5xx`";
    let mut statuses = Statuses::default();
    let mut is_good = true;
    for item in scalar::one_or_many(node, "status", &mut context.report) {
        let Some(text) = scalar::text(item, EXPECTED, &mut context.report) else {
            is_good = false;
            continue;
        };
        let class = text.strip_suffix("xx").or_else(|| text.strip_suffix("XX"));
        let known = match class {
            Some(class) => class.parse().is_ok_and(|class| statuses.insert_class(class)),
            None => text.parse().is_ok_and(|status| statuses.insert(status)),
        };
        if !known {
            is_good = false;
            let finding = Finding::error(item, format!("there is no status {}", quote(text)));
            context.report.push(finding.expected(EXPECTED));
        }
    }
    (is_good && statuses != Statuses::default()).then_some(statuses)
}
