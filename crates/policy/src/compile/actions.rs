//! Decodes `on_exceed`.

use tidegate_core::{ActionKind, Algorithm, Borrow, Coordination, Slowdown, SlowdownError};

use crate::compile::{CompileContext, routing, scalar};
use crate::language::{CACHE, CACHED, CREDENTIALS, DEFER, DEGRADE, LEND, ON_EXCEED, SLOWDOWN};
use crate::plan::{DeferAction, DegradedUpstream, ExceedAction, RuleSharing};
use crate::raw::{Fields, Finding, NodeRef, YamlNode, YamlValue, nearest};
use crate::render::quote;
use crate::units::{self, span_text};

/// What no interface performs yet. Such a limit would reject, so it is a problem.
const NOT_PERFORMED: [ActionKind; 1] = [ActionKind::Defer];
const DEFAULT_CACHE_MEMORY: u64 = 64 << 20;
const MIN_CACHE_MEMORY: u64 = 1 << 20;
const DEFAULT_QUEUE: u32 = 10_000;
const DEFAULT_PER_CLIENT: u32 = 100;
const DEFAULT_BODY: u64 = 64 << 10;
const DEFAULT_ATTEMPTS: u32 = 8;
const DEFAULT_KEEP: tidegate_core::TimeSpan = tidegate_core::TimeSpan::from_secs(86_400);

/// Decodes the memory for responses in place of rejections, in bytes.
pub(super) fn cache_memory<'s>(fields: &Fields<'_, 's>, context: &mut CompileContext<'s, '_>) -> Option<u64> {
    let Some(node) = fields.get("cache") else { return Some(DEFAULT_CACHE_MEMORY) };
    let fields = Fields::open(node, &CACHE, &mut context.report)?;
    let node = fields.require("memory", &mut context.report)?;
    let bytes = scalar::size(node, &mut context.report)?;
    if bytes < MIN_CACHE_MEMORY {
        let finding = Finding::error(node, "the memory is too small for usual responses");
        context.report.push(finding.expected("at least 1MiB"));
        return None;
    }
    context.targets.cache = Some(NodeRef::from(node));
    Some(bytes)
}

/// Decodes what happens when a limit is exceeded. Returns `None` if it is invalid.
pub(super) fn on_exceed<'s>(
    fields: &Fields<'_, 's>,
    context: &mut CompileContext<'s, '_>,
) -> Option<ExceedAction> {
    let Some(node) = fields.get("on_exceed") else { return Some(ExceedAction::Reject) };
    let action = decode(node, context)?;
    if NOT_PERFORMED.contains(&action.kind()) {
        let what = format!("`{}` is not supported yet", action.kind().name());
        context.report.push(Finding::error(node, what).hint("use another action, or remove `on_exceed`"));
        return None;
    }
    Some(action)
}

fn decode<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Option<ExceedAction> {
    if !matches!(&node.value, YamlValue::Mapping(_)) {
        return named(node, context);
    }
    let fields = Fields::open(node, &ON_EXCEED, &mut context.report)?;
    let keys = || ON_EXCEED.keys.iter().map(|key| key.name);
    let mut given = keys().filter_map(|key| Some((key, fields.get(key)?)));
    let Some((key, value)) = given.next() else {
        if !fields.is_misspelt() {
            let expected = format!("one of {}", keys().collect::<Vec<_>>().join(", "));
            let finding = Finding::error(node, "`on_exceed` names no action").expected(expected);
            context.report.push(finding.hint("for example `{ wait: 2s }`"));
        }
        return None;
    };
    if let Some((other, at)) = given.next() {
        let finding = Finding::error(at, format!("`{key}` and `{other}` cannot be combined"));
        context.report.push(finding.hint("a limit has one action; use two limits for two actions"));
        return None;
    }
    match key {
        "cached" => {
            let fields = Fields::open(value, &CACHED, &mut context.report)?;
            let max_age = fields.require("for", &mut context.report)?;
            Some(ExceedAction::Cached { max_age: scalar::duration(max_age, &mut context.report)? })
        }
        "wait" => Some(ExceedAction::Wait { max: scalar::duration(value, &mut context.report)? }),
        "defer" => defer(value, context).map(|defer| ExceedAction::Defer(Box::new(defer))),
        "degrade" => degrade(value, context),
        "slow" => slow(value, context).map(ExceedAction::Slow),
        _ => borrow(value, context).map(ExceedAction::Borrow),
    }
}

/// An action without parameters.
fn named(node: &YamlNode<'_>, context: &mut CompileContext<'_, '_>) -> Option<ExceedAction> {
    let report = &mut context.report;
    let text = scalar::text(node, "`reject`, `degrade`, or a mapping such as `{ wait: 2s }`", report)?;
    match text {
        "reject" => Some(ExceedAction::Reject),
        "degrade" => Some(ExceedAction::Degrade { upstream: None }),
        other => {
            let finding = unknown_action(node, other);
            report.push(finding);
            None
        }
    }
}

fn unknown_action(node: &YamlNode<'_>, name: &str) -> Finding {
    if let Some(key) = ON_EXCEED.key(name) {
        let finding = Finding::error(node, format!("`{name}` needs parameters"));
        return finding.hint(format!("for example `on_exceed: {{ {name}: {} }}`", key.example));
    }
    let names = ActionKind::ALL.map(ActionKind::name);
    let finding = Finding::error(node, format!("unknown action {}", quote(name)));
    let finding = finding.expected(format!("one of {}", names.join(", ")));
    finding.did_you_mean(nearest(name, names))
}

fn degrade<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Option<ExceedAction> {
    let fields = Fields::open(node, &DEGRADE, &mut context.report)?;
    let node = fields.require("upstream", &mut context.report)?;
    let name = scalar::text(node, "the name of an upstream, for example `cheap`", &mut context.report)?;
    let index = context.upstreams.iter().position(|known| known == name);
    let Some(index) = index else {
        let known: Vec<_> = context.upstreams.iter().map(String::as_str).collect();
        routing::report_unknown_upstream(node, name, &known, &mut context.report);
        return None;
    };
    Some(ExceedAction::Degrade { upstream: Some(DegradedUpstream { index, name: name.to_owned() }) })
}

fn slow<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Option<Slowdown> {
    const EXPECTED: &str = "a percentage below 100%, for example `80%`";
    let report = &mut context.report;
    let fields = Fields::open(node, &SLOWDOWN, report)?;
    let max = fields.require("max", report).and_then(|node| scalar::duration(node, report));
    let at = fields.require("from", report)?;
    let text = scalar::text(at, EXPECTED, report)?;
    let from = match units::percent(text) {
        Ok(from) => from,
        Err(error) => {
            let finding = Finding::error(at, format!("{} {error}", quote(text))).expected(EXPECTED);
            report.push(finding.hint("for example `80%`"));
            return None;
        }
    };
    let error = match Slowdown::new(from, max?) {
        Ok(slow) => return Some(slow),
        Err(error) => error,
    };
    report.push(match error {
        SlowdownError::MaxTooLong => {
            let longest = span_text(Slowdown::LONGEST);
            let finding = Finding::error(fields.get("max").unwrap_or(node), "no client waits that long");
            finding.expected(format!("at most {longest}"))
        }
        SlowdownError::FromTooHigh | SlowdownError::ZeroMax => {
            let finding = Finding::error(at, format!("from {} on no request is delayed", quote(text)));
            finding.expected(EXPECTED)
        }
    });
    None
}

fn borrow<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Option<Borrow> {
    let report = &mut context.report;
    let fields = Fields::open(node, &LEND, report)?;
    let units = fields.require("units", report).and_then(|node| scalar::positive(node, "`units`", report));
    let repay = fields.get_or("repay", 2, |node| scalar::positive(node, "`repay`", report));
    Some(Borrow { units: units?, repay: repay? })
}

fn defer<'s>(node: &YamlNode<'s>, context: &mut CompileContext<'s, '_>) -> Option<DeferAction> {
    let report = &mut context.report;
    let fields = Fields::open(node, &DEFER, report)?;
    let requests =
        fields.require("requests", report).and_then(|node| scalar::positive(node, "`requests`", report));
    let window = fields.require("window", report).and_then(|node| scalar::duration(node, report));
    let mut count = |key: &str, default: u32| {
        fields.get_or(key, default, |node| scalar::positive_u32(node, &format!("`{key}`"), report))
    };
    let (queue, per_client) = (count("queue", DEFAULT_QUEUE), count("per_client", DEFAULT_PER_CLIENT));
    let attempts = count("attempts", DEFAULT_ATTEMPTS);
    let body = fields.get_or("body", DEFAULT_BODY, |node| scalar::size(node, report));
    let keep = fields.get_or("keep", DEFAULT_KEEP, |node| scalar::duration(node, report));
    let stores_credentials = fields.get_or("credentials", false, |node| {
        scalar::choice(node, "value", CREDENTIALS, &[false, true], report)
    });
    Some(DeferAction {
        requests: requests?,
        window: window?,
        queue: queue?,
        per_client: per_client?,
        body: body?,
        attempts: attempts?,
        keep: keep?,
        stores_credentials: stores_credentials?,
    })
}

/// Reports an action that cannot be combined with the algorithm or the coordination of its limit.
pub(super) fn check<'s>(
    fields: &Fields<'_, 's>,
    action: &ExceedAction,
    algorithm: Algorithm,
    sharing: Option<RuleSharing>,
    context: &mut CompileContext<'s, '_>,
) -> Option<()> {
    let node = fields.get("on_exceed")?;
    let finding = match action {
        ExceedAction::Wait { .. } | ExceedAction::Slow(_) if algorithm == Algorithm::LeakyBucket => {
            let name = action.kind().name();
            let what =
                format!("`{name}` cannot be combined with `leaky_bucket`, which delays requests itself");
            Finding::error(node, what).hint("remove `on_exceed`; `max_wait` bounds the wait in the bucket")
        }
        ExceedAction::Borrow(_) if algorithm != Algorithm::TokenBucket => {
            let what = format!("`{algorithm}` does not support `borrow`");
            Finding::error(node, what).hint("remove `on_exceed`, or set `algorithm: token_bucket`")
        }
        ExceedAction::Borrow(_) => match sharing.map(|sharing| sharing.coordination) {
            Some(coordination @ (Coordination::Lease | Coordination::Sync)) => {
                let name = coordination.name();
                let what = format!("`borrow` cannot be combined with `coordination: {name}`");
                Finding::error(node, what).hint("set `coordination: central` for this limit")
            }
            _ => return Some(()),
        },
        _ => return Some(()),
    };
    context.report.push(finding);
    None
}
