//! Decodes `breaker`.

use tidegate_core::{Breaker, BreakerConfig, BreakerConfigError, SlowCalls, WindowLength};

use crate::compile::scalar;
use crate::language::{BREAKER, SLOW};
use crate::plan::{BreakerPlan, BreakerScope, TimeoutsPlan};
use crate::raw::{Fields, Finding, NodeRef, ProblemReport, YamlNode};
use crate::units::span_text;

/// How to fix a rate of 0%.
const ZERO_RATE: &str = "remove it, so that only the other conditions open the breaker";

pub(super) fn breaker<'s>(
    node: &YamlNode<'s>,
    timeouts: &TimeoutsPlan,
    report: &mut ProblemReport<'s>,
) -> Option<BreakerPlan> {
    let fields = Fields::open(node, &BREAKER, report)?;
    let default = BreakerConfig::default();
    let [failures, min_calls, probes, successes] = ["failures", "min_calls", "probes", "successes"]
        .map(|key| scalar::positive_u32(fields.get(key)?, &format!("`{key}`"), report));
    let [window, open_for, max_open_for] = ["window", "open_for", "max_open_for"]
        .map(|key| fields.get(key).and_then(|node| scalar::duration(node, report)));
    let failure_rate = fields.get("failure_rate").and_then(|node| scalar::ratio(node, ZERO_RATE, report));
    let slow = fields.get("slow").and_then(|node| slow(node, timeouts, report));
    let scope = fields
        .get("per")
        .and_then(|node| scalar::choice(node, "scope", &BreakerScope::NAMES, &BreakerScope::ALL, report));
    let has_rate = fields.get("failure_rate").is_some() || fields.get("slow").is_some();
    if !has_rate {
        warn_of_unused_keys(&fields, report);
    }
    let open_for = open_for.unwrap_or(default.open_for);
    let config = BreakerConfig {
        // Also the default if the rates are invalid, so that the other keys are validated.
        failures: failures.or(default.failures.filter(|_| failure_rate.is_none() && slow.is_none())),
        failure_rate,
        slow,
        window: window.map_or(default.window, WindowLength::Time),
        min_calls: min_calls.unwrap_or(default.min_calls),
        open_for,
        max_open_for: max_open_for.unwrap_or(open_for),
        probes: probes.unwrap_or(default.probes),
        successes: successes.unwrap_or(default.successes),
        open_jitter: default.open_jitter,
    };
    if let Err(error) = Breaker::new(config) {
        report.push(invalid(node, &fields, error));
    }
    Some(BreakerPlan { config, scope: scope.unwrap_or_default() })
}

fn slow<'s>(
    node: &YamlNode<'s>,
    timeouts: &TimeoutsPlan,
    report: &mut ProblemReport<'s>,
) -> Option<SlowCalls> {
    let fields = Fields::open(node, &SLOW, report)?;
    let over = fields
        .require("over", report)
        .and_then(|node| Some((NodeRef::from(node), scalar::duration(node, report)?)));
    let rate = fields.require("rate", report).and_then(|node| scalar::ratio(node, ZERO_RATE, report));
    let (at, over) = over?;
    if over > timeouts.request {
        let request = span_text(timeouts.request);
        let what = format!("no request is ever slow: it times out after `timeouts.request`, {request}");
        report.push(Finding::warning(at, what).hint("use a time below `timeouts.request`"));
    }
    Some(SlowCalls { over, rate: rate? })
}

fn warn_of_unused_keys(fields: &Fields<'_, '_>, report: &mut ProblemReport<'_>) {
    for key in ["window", "min_calls"] {
        if let Some(node) = fields.get(key) {
            let what = format!("`{key}` has no effect without `failure_rate` or `slow`");
            let finding = Finding::warning(NodeRef::from(node), what);
            report.push(finding.hint(format!("add `failure_rate: 50%`, or remove `{key}`")));
        }
    }
}

fn invalid(node: &YamlNode<'_>, fields: &Fields<'_, '_>, error: BreakerConfigError) -> Finding {
    match error {
        BreakerConfigError::MaxOpenBelowOpen { open_for, .. } => {
            let what = format!("`max_open_for` is shorter than `open_for` ({})", span_text(open_for));
            let finding = Finding::error(fields.get("max_open_for").unwrap_or(node), what);
            finding.expected("`open_for` ≤ `max_open_for`").hint("use a longer duration, or remove it")
        }
        error => Finding::error(node, error.to_string()).hint(BREAKER.hint()),
    }
}
