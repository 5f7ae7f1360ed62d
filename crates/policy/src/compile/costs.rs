//! Decodes `cost` and `charge`.

use http::header::HeaderName;
use tidegate_core::{Algorithm, Cost};

use crate::compile::{CompileContext, rules, scalar};
use crate::language::{AFTER, CHARGE, COST};
use crate::plan::{ChargeBasis, Rule, RuleCost, StatusSet};
use crate::raw::{Fields, Finding, YamlNode, YamlValue};
use crate::render::quote;

/// Decodes the cost of a request for a rule.
pub(super) fn cost<'s>(fields: &Fields<'_, 's>, context: &mut CompileContext<'s, '_>) -> Option<RuleCost> {
    let Some(node) = fields.get("cost") else { return Some(RuleCost::Constant(Cost::ONE)) };
    if let YamlValue::Mapping(_) = &node.value {
        let fields = Fields::open(node, &COST, &mut context.report)?;
        return match one_of(node, &fields, ["header", "body"], context)? {
            ("header", node) => header(node, context).map(RuleCost::Header),
            (_, node) => {
                let bytes = scalar::size(node, &mut context.report)?;
                if bytes == 0 {
                    let finding = Finding::error(node, "`body` must be at least 1 byte");
                    context.report.push(finding.expected("a size, for example `1KiB`"));
                    return None;
                }
                Some(RuleCost::Body(bytes))
            }
        };
    }
    let cost = scalar::positive(node, "`cost`", &mut context.report)?;
    Some(RuleCost::Constant(Cost::new(cost)))
}

/// Decodes when a rule charges.
pub(super) fn charge<'s>(
    fields: &Fields<'_, 's>,
    context: &mut CompileContext<'s, '_>,
) -> Option<ChargeBasis> {
    let Some(node) = fields.get("charge") else { return Some(ChargeBasis::UpFront) };
    let fields = Fields::open(node, &CHARGE, &mut context.report)?;
    let after = fields.require("after", &mut context.report)?;
    let fields = Fields::open(after, &AFTER, &mut context.report)?;
    match one_of(after, &fields, ["status", "header"], context)? {
        ("header", node) => header(node, context).map(ChargeBasis::Header),
        (_, node) => statuses(node, context).map(ChargeBasis::Status),
    }
}

/// Reports combinations that cannot work: a cost above the limit, and charges that cannot be settled.
pub(super) fn check<'s>(
    fields: &Fields<'_, 's>,
    rule: &Rule,
    cost: Option<&RuleCost>,
    charge: Option<&ChargeBasis>,
    context: &mut CompileContext<'s, '_>,
) {
    if let (Some(RuleCost::Constant(cost)), Some(node)) = (cost, fields.get("cost"))
        && cost.get() > rule.limit.capacity()
    {
        let finding =
            Finding::error(node, "`cost` is larger than the limit, so every request would be rejected");
        context.report.push(finding.expected(format!("at most {}", rule.limit.capacity())));
    }
    let Some(node) = fields.get("charge").filter(|_| charge.is_some()) else { return };
    if let Some(RuleCost::Body(_)) = cost {
        let finding = Finding::error(node, "`cost: { body }` and `charge` cannot be combined");
        context.report.push(finding.hint("use two rules, or a `cost` that is not counted by the body"));
    }
    if rule.algorithm() == Algorithm::LeakyBucket {
        let finding = Finding::error(
            node,
            "`leaky_bucket` cannot be combined with `charge`: it cannot refund requests that others wait behind",
        );
        context.report.push(finding.hint("use `algorithm: token_bucket` or a sliding window"));
    }
}

/// Returns the one of two keys that is present; reports both or neither.
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
            let finding = Finding::error(node, format!("`{first}` or `{second}` is missing"));
            context.report.push(finding.hint("add one of them"));
            None
        }
        (Some(_), Some(other)) => {
            let finding = Finding::error(other, format!("`{first}` and `{second}` cannot be combined"));
            context.report.push(finding.hint("remove one of them"));
            None
        }
    }
}

fn header(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<HeaderName> {
    let name = scalar::header(node, &mut context.report)?;
    rules::header_name(&name, node, context)
}

fn statuses(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<StatusSet> {
    const EXPECTED: &str = "a status code such as 401, or a class such as `5xx`";
    let mut statuses = StatusSet::default();
    let mut is_valid = true;
    for item in scalar::one_or_many(node, "status", &mut context.report) {
        let Some(text) = scalar::text(item, EXPECTED, &mut context.report) else {
            is_valid = false;
            continue;
        };
        let class = text.strip_suffix("xx").or_else(|| text.strip_suffix("XX"));
        let known = match class {
            Some(class) => class.parse().is_ok_and(|class| statuses.insert_class(class)),
            None => text.parse().is_ok_and(|status| statuses.insert(status)),
        };
        if !known {
            is_valid = false;
            let finding = Finding::error(item, format!("invalid status code {}", quote(text)));
            context.report.push(finding.expected(EXPECTED));
        }
    }
    (is_valid && statuses != StatusSet::default()).then_some(statuses)
}
