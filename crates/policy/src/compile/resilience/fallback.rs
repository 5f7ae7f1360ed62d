//! Decodes `fallback`.

use crate::compile::{CompileContext, files, routing, scalar};
use crate::language::FALLBACK;
use crate::plan::{FallbackBody, FallbackPlan, UpstreamPlan};
use crate::raw::{Fields, Finding, NodeRef, ProblemReport, YamlNode};
use crate::render::quote;
use std::collections::HashMap;

/// The maximum size of a body in bytes. It is kept in memory.
const MAX_BODY: usize = 1 << 20;
/// The status without the key `status`.
const DEFAULT_STATUS: u16 = 503;
/// The number of names of a cycle that a message lists.
const MAX_LISTED: usize = 8;

/// The name of a fallback upstream.
pub(in crate::compile) struct FallbackReference<'n, 's> {
    /// The index of the upstream that has the fallback.
    pub(in crate::compile) from: usize,
    /// The name.
    pub(in crate::compile) name: &'n YamlNode<'s>,
}

/// Decodes a fallback: a response, or the node with the name of an upstream.
pub(super) fn fallback<'n, 's>(
    node: &'n YamlNode<'s>,
    has_breaker: bool,
    context: &mut CompileContext<'s, '_>,
) -> (Option<FallbackPlan>, Option<&'n YamlNode<'s>>) {
    let Some(fields) = Fields::open(node, &FALLBACK, &mut context.report) else { return (None, None) };
    if !has_breaker {
        let what = "`fallback` never applies: the upstream has no `breaker`";
        let finding = Finding::warning(NodeRef::from(node), what);
        context.report.push(finding.hint("add a breaker, for example `breaker: { failures: 5 }`"));
    }
    let status = fields.get("status").map(|node| status(node, &mut context.report));
    let body = fields.get("body").map(|node| body(node, context));
    let upstream = fields.get("upstream");
    if let Some(node) = upstream {
        if status.is_some() || body.is_some() {
            let what = "`upstream` cannot be combined with `status` and `body`";
            let hint =
                "remove `upstream`, or the other keys; the response of the upstream is returned as it is";
            context.report.push(Finding::error(node, what).hint(hint));
        }
        return (None, Some(node));
    }
    if status.is_none() && body.is_none() {
        if !fields.is_misspelt() {
            let finding = Finding::error(node, "`fallback` is empty: set `status`, `body` or `upstream`");
            context.report.push(finding.hint("for example `{ status: 503, body: down.json }`"));
        }
        return (None, None);
    }
    let status = status.flatten().unwrap_or(DEFAULT_STATUS);
    if let (204 | 205 | 304, Some(node)) = (status, fields.get("body")) {
        let finding = Finding::error(node, format!("a response with status {status} has no body"));
        context.report.push(finding.hint("use another status, for example 200, or remove `body`"));
    }
    (Some(FallbackPlan::Response { status, body: body.flatten() }), None)
}

fn status(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<u16> {
    let number = scalar::count(node, report)?;
    let status = u16::try_from(number).ok().filter(|status| (200..=599).contains(status));
    if status.is_none() {
        let finding = Finding::error(node, format!("invalid status {number}"));
        report.push(finding.expected("200 to 599").hint("for example 503"));
    }
    status
}

fn body(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<FallbackBody> {
    let name = scalar::text(node, "a file name, for example `down.json`", &mut context.report)?;
    let content_type = files::content_type(name);
    if content_type.is_none() {
        let finding = Finding::error(node, format!("unknown type of file {}", quote(name)));
        context.report.push(finding.expected("a name that ends with .json, .html or .txt"));
    }
    let files::ReferencedFile { name: file, shown, bytes } = files::read_file(node, context)?;
    let content_type = content_type?;
    let invalid = |what: String| Finding::error(node, format!("{} {what}", quote(&shown)));
    let finding = if bytes.len() > MAX_BODY {
        invalid("is larger than 1 MiB".to_owned()).hint("use a smaller file; it is kept in memory")
    } else if std::str::from_utf8(&bytes).is_err() {
        invalid("is not valid UTF-8".to_owned()).hint("save the file as UTF-8")
    } else if let ("application/json", Err(error)) =
        (content_type, serde_json::from_slice::<serde::de::IgnoredAny>(&bytes))
    {
        invalid(format!("is not valid JSON: {error}")).hint("correct the file")
    } else {
        return Some(FallbackBody { file, content: bytes, content_type });
    };
    context.report.push(finding);
    None
}

/// Sets the fallback upstreams. Reports names that do not exist, and cycles.
pub(in crate::compile) fn resolve_fallbacks(
    upstreams: &mut [UpstreamPlan],
    references: &[FallbackReference<'_, '_>],
    report: &mut ProblemReport<'_>,
) {
    let names: Vec<_> = upstreams.iter().map(|upstream| upstream.name.clone()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let index: HashMap<_, _> = names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    // By the index of the upstream: the node of the name, and the index of the fallback.
    let mut next = HashMap::new();
    for FallbackReference { from, name: node } in references {
        let Some(name) = scalar::text(node, "the name of an upstream, for example `replica`", report) else {
            continue;
        };
        match index.get(name) {
            None => routing::report_unknown_upstream(node, name, &names, report),
            Some(to) if to == from => {
                let finding =
                    Finding::error(*node, format!("the upstream {} is its own fallback", quote(name)));
                report.push(finding.hint("name another upstream"));
            }
            Some(to) => {
                next.insert(*from, (*node, *to));
                if let Some(upstream) = upstreams.get_mut(*from) {
                    upstream.resilience.fallback = Some(FallbackPlan::Upstream(*to));
                }
            }
        }
    }
    report_cycles(references, &names, &next, report);
}

/// Reports each cycle once. Every upstream is visited once.
fn report_cycles(
    references: &[FallbackReference<'_, '_>],
    names: &[&str],
    next: &HashMap<usize, (&YamlNode<'_>, usize)>,
    report: &mut ProblemReport<'_>,
) {
    // The walk that visited an upstream, by its start.
    let mut visited: HashMap<usize, usize> = HashMap::new();
    for start in references.iter().map(|reference| reference.from) {
        let mut at = start;
        while let Some((node, to)) = next.get(&at).filter(|_| !visited.contains_key(&at)) {
            visited.insert(at, start);
            if visited.get(to) == Some(&start) {
                let cycle = describe_cycle(*to, names, next);
                let finding = Finding::error(*node, format!("the fallbacks form a cycle: {cycle}"));
                report.push(finding.hint("remove one of these fallbacks"));
            }
            at = *to;
        }
    }
}

fn describe_cycle(start: usize, names: &[&str], next: &HashMap<usize, (&YamlNode<'_>, usize)>) -> String {
    let name = |at: usize| quote(names.get(at).copied().unwrap_or_default());
    let step = |at: &usize| next.get(at).map(|(_, to)| *to).filter(|to| *to != start);
    let mut listed: Vec<_> =
        std::iter::successors(Some(start), step).take(MAX_LISTED + 1).map(name).collect();
    if let Some(last) = listed.get_mut(MAX_LISTED) {
        "…".clone_into(last);
    }
    listed.push(name(start));
    listed.join(" → ")
}
