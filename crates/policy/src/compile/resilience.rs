//! Decodes what happens when an upstream fails or is slow.
//!
//! An invalid value is reported and replaced by its default, which has no effect because there is no plan then. A default
//! adapts to the values that are set, so only values that the operator wrote can contradict each other.

mod breaker;
mod fallback;
mod retry;

use tidegate_core::{AdaptiveConfig, AdaptiveLimit, Ratio, TimeSpan};

use crate::compile::{CompileContext, scalar};
use crate::language::{
    ADAPTIVE, ADAPTIVE_LIMIT, BULKHEAD, EJECT, Mapping, OFF, ROUTE_BULKHEAD, SHED, TIMEOUTS,
};
use crate::plan::{BulkheadPlan, EjectPlan, ResiliencePlan, TimeoutsPlan, UpstreamPlan};
use crate::raw::{Fields, Finding, NodeRef, ProblemReport, YamlNode, YamlValue};
use crate::units::span_text;

pub(super) use fallback::{FallbackReference, resolve_fallbacks};

/// The wait of a bulkhead with a queue and without `wait`.
const DEFAULT_WAIT: TimeSpan = TimeSpan::from_secs(1);

/// Decodes the settings of an upstream with these servers. Returns also the name of its fallback upstream, which is
/// resolved when all upstreams are known.
pub(super) fn resilience<'n, 's>(
    fields: &Fields<'n, 's>,
    servers: &[String],
    context: &mut CompileContext<'s, '_>,
) -> (ResiliencePlan, Option<&'n YamlNode<'s>>) {
    let report = &mut context.report;
    let timeouts = fields.get("timeouts").map_or_else(TimeoutsPlan::default, |node| timeouts(node, report));
    let retry = fields.get("retry").map(|node| retry::retry(node, &timeouts, report)).unwrap_or_default();
    let breaker = fields.get("breaker").and_then(|node| breaker::breaker(node, &timeouts, report));
    let bulkhead = fields.get("bulkhead").and_then(|node| upstream_bulkhead(node, servers, report));
    let eject =
        fields.get("eject").map_or_else(|| Some(EjectPlan::default()), |node| eject(node, servers, report));
    let shed = fields.get("shed").and_then(|node| shed(node, report));
    let (fallback, upstream) = match fields.get("fallback") {
        Some(node) => fallback::fallback(node, fields.get("breaker").is_some(), context),
        None => (None, None),
    };
    (ResiliencePlan { timeouts, retry, breaker, bulkhead, eject, shed, fallback }, upstream)
}

/// Whether `node` is one of these words.
fn is_word(node: &YamlNode<'_>, words: &[&str]) -> bool {
    matches!(&node.value, YamlValue::Scalar { text, .. } if words.contains(&&**text))
}

/// Opens a mapping in whose place a word is allowed too; a value that is neither is reported.
fn open_or_word<'n, 's>(
    node: &'n YamlNode<'s>,
    word: &[&str],
    mapping: &'static Mapping,
    report: &mut ProblemReport<'s>,
) -> Option<Fields<'n, 's>> {
    if matches!(node.value, YamlValue::Mapping(_)) {
        return Fields::open(node, mapping, report);
    }
    let word = word.join(", ");
    let what = format!("{} must be `{word}` or a mapping, not {}", mapping.name, node.describe());
    report.push(Finding::error(node, what).expected(format!("`{word}`, or a mapping")).hint(mapping.hint()));
    None
}

fn timeouts<'s>(node: &YamlNode<'s>, report: &mut ProblemReport<'s>) -> TimeoutsPlan {
    let default = TimeoutsPlan::default();
    let Some(fields) = Fields::open(node, &TIMEOUTS, report) else { return default };
    let [connect, request, idle, total] = ["connect", "request", "idle", "total"]
        .map(|key| fields.get(key).and_then(|node| scalar::duration(node, report)));
    let mut check = |(short, shorter): (&str, Option<TimeSpan>), (long, longer): (&str, Option<TimeSpan>)| {
        let (Some(shorter), Some(longer), Some(node)) = (shorter, longer, fields.get(short)) else { return };
        if shorter > longer {
            let what = format!("`{short}` is longer than `{long}` ({})", span_text(longer));
            let finding = Finding::error(node, what).expected("`connect` ≤ `request` ≤ `total`");
            report.push(finding.hint(format!("shorten `{short}`, or set a longer `{long}`")));
        }
    };
    check(("connect", connect), ("request", request));
    check(("request", request), ("total", total));
    if request.is_none() {
        check(("connect", connect), ("total", total));
    }
    let request = request.unwrap_or_else(|| {
        let at_least = default.request.max(connect.unwrap_or(default.request));
        at_least.min(total.unwrap_or(at_least))
    });
    TimeoutsPlan {
        connect: connect.unwrap_or_else(|| default.connect.min(request)),
        request,
        idle: idle.unwrap_or(default.idle),
        total: total.unwrap_or_else(|| default.total.max(request)),
        starts_deadline: total.is_some(),
    }
}

fn upstream_bulkhead<'s>(
    node: &YamlNode<'s>,
    servers: &[String],
    report: &mut ProblemReport<'s>,
) -> Option<BulkheadPlan> {
    let fields = Fields::open(node, &BULKHEAD, report)?;
    let connections =
        fields.get("connections").map(|node| (node, scalar::positive_u32(node, "`connections`", report)));
    let bulkhead = bulkhead(&fields, report)?;
    let connections = connections.and_then(|(node, connections)| Some((node, connections?)));
    // With HTTP/2, one connection carries many requests.
    let is_http1 = servers.iter().all(|server| server.starts_with("http://"));
    if let Some((node, connections)) = connections
        && is_http1
        && connections < bulkhead.concurrent
    {
        let what = format!(
            "`concurrent: {}` is never reached: HTTP/1.1 needs a connection for each request",
            bulkhead.concurrent
        );
        let hint = format!("set `connections` to at least {}, or remove it", bulkhead.concurrent);
        report.push(Finding::warning(NodeRef::from(node), what).hint(hint));
    }
    Some(BulkheadPlan { connections: connections.map(|(_, connections)| connections), ..bulkhead })
}

/// Decodes the bulkhead of a route to `upstream`, if that is known.
pub(super) fn route_bulkhead<'s>(
    node: &YamlNode<'s>,
    upstream: Option<&UpstreamPlan>,
    report: &mut ProblemReport<'s>,
) -> Option<BulkheadPlan> {
    let fields = Fields::open(node, &ROUTE_BULKHEAD, report)?;
    let bulkhead = bulkhead(&fields, report)?;
    let outer = upstream.and_then(|upstream| Some((&upstream.name, upstream.resilience.bulkhead?)));
    // A request that waits for the upstream's bulkhead is in flight on its route.
    if let Some((name, outer)) = outer
        && bulkhead.concurrent >= outer.concurrent
    {
        let what = if bulkhead.concurrent >= outer.concurrent.saturating_add(outer.queue) {
            format!(
                "this bulkhead is never full: that of the upstream `{name}` admits only {} requests and queues {}",
                outer.concurrent, outer.queue
            )
        } else {
            format!(
                "requests of this route alone can fill the bulkhead of the upstream `{name}`, which admits {}; \
                 other routes are then rejected",
                outer.concurrent
            )
        };
        let finding = Finding::warning(NodeRef::from(node), what);
        report.push(finding.hint("use a smaller `concurrent` here, or a larger one at the upstream"));
    }
    Some(bulkhead)
}

fn bulkhead<'s>(fields: &Fields<'_, 's>, report: &mut ProblemReport<'s>) -> Option<BulkheadPlan> {
    let concurrent = fields
        .require("concurrent", report)
        .and_then(|node| scalar::positive_u32(node, "`concurrent`", report));
    let queue = fields.get_or("queue", 0, |node| scalar::count_u32(node, report));
    let wait = fields.get("wait").map(|node| (node, scalar::duration(node, report)));
    if let (Some((node, Some(_))), Some(0)) = (wait, queue) {
        let finding = Finding::warning(NodeRef::from(node), "`wait` has no effect without `queue`");
        report.push(finding.hint("add `queue`, for example `queue: 20`, or remove `wait`"));
    }
    let (concurrent, queue) = (concurrent?, queue?);
    let wait = match wait {
        _ if queue == 0 => TimeSpan::ZERO,
        Some((_, wait)) => wait?,
        None => DEFAULT_WAIT,
    };
    Some(BulkheadPlan { concurrent, queue, wait, connections: None })
}

fn eject<'s>(node: &YamlNode<'s>, servers: &[String], report: &mut ProblemReport<'s>) -> Option<EjectPlan> {
    if is_word(node, OFF) {
        return None;
    }
    let fields = open_or_word(node, OFF, &EJECT, report)?;
    let default = EjectPlan::default();
    let after = fields.get("after").and_then(|node| scalar::positive_u32(node, "`after`", report));
    let duration = fields.get("for").and_then(|node| scalar::duration(node, report));
    let at_most = fields
        .get("at_most")
        .and_then(|node| scalar::ratio(node, "write `eject: off` to keep all servers", report))
        .unwrap_or(default.at_most);
    let at = NodeRef::from(fields.get("at_most").unwrap_or(node));
    let count = servers.len();
    if at_most > Ratio::from_percent(50) {
        let what =
            format!("up to {at_most} of the servers may be ejected; the rest, if any, gets all of the load");
        report.push(Finding::warning(at, what).hint("use `50%` or less"));
    } else if count > 0 && at_most.of(u64::try_from(count).unwrap_or(u64::MAX)) == 0 {
        let servers = if count == 1 { "server" } else { "servers" };
        let what = format!("no server is ever ejected: {at_most} of {count} {servers} is less than one");
        report.push(Finding::warning(at, what).hint("add servers, raise `at_most`, or remove `eject`"));
    }
    Some(EjectPlan {
        after: after.unwrap_or(default.after),
        duration: duration.unwrap_or(default.duration),
        at_most,
    })
}

fn shed<'s>(node: &YamlNode<'s>, report: &mut ProblemReport<'s>) -> Option<AdaptiveConfig> {
    let default = AdaptiveConfig::default();
    if is_word(node, ADAPTIVE) {
        return Some(default);
    }
    let fields = open_or_word(node, ADAPTIVE, &SHED, report)?;
    let node = fields.require("adaptive", report)?;
    let fields = Fields::open(node, &ADAPTIVE_LIMIT, report)?;
    let [initial, min, max] = ["initial", "min", "max"].map(|key| {
        let node = fields.get(key)?;
        scalar::positive_u32(node, &format!("`{key}`"), report)
    });
    let max = max.unwrap_or_else(|| default.max.max(initial.unwrap_or(0)).max(min.unwrap_or(0)));
    let min = min.unwrap_or_else(|| default.min.min(initial.unwrap_or(max)).min(max));
    let initial = initial.unwrap_or_else(|| default.initial.max(min).min(max));
    let config = AdaptiveConfig { initial, min, max, ..default };
    if let Err(error) = AdaptiveLimit::new(config) {
        report.push(Finding::error(node, error.to_string()).hint("for example `{ min: 10, max: 200 }`"));
    }
    Some(config)
}
