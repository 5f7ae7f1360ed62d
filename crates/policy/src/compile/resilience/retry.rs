//! Decodes `retry`.

use std::collections::HashSet;

use tidegate_core::{Backoff, Jitter};

use super::{is_word, open_or_word};
use crate::compile::scalar;
use crate::language::{OFF, RETRY, RETRY_BUDGET, RETRY_CAUSES};
use crate::plan::{RetryBudgetPlan, RetryCauses, RetryPlan, TimeoutsPlan};
use crate::raw::{Fields, Finding, NodeRef, ProblemReport, YamlNode, YamlValue, nearest};
use crate::render::quote;
use crate::units::{size_text, span_text};

/// More attempts multiply the load on an upstream that fails already.
const MAX_ATTEMPTS: u64 = 10;
/// Each request with a body may occupy a buffer.
const MAX_BUFFER: u64 = 16 << 20;

pub(super) fn retry<'s>(
    node: &YamlNode<'s>,
    timeouts: &TimeoutsPlan,
    report: &mut ProblemReport<'s>,
) -> RetryPlan {
    let default = RetryPlan::default();
    if is_word(node, OFF) {
        return RetryPlan { attempts: 1, ..default };
    }
    let Some(fields) = open_or_word(node, OFF, &RETRY, report) else { return default };
    let attempts = fields.get("attempts").and_then(|node| attempts(node, report));
    let on = fields.get("on").and_then(|node| causes(node, timeouts, report));
    let methods = fields.get("methods").map(|node| methods(node, report));
    let backoff = backoff(&fields, timeouts, report);
    let budget = fields.get("budget").map(|node| budget(node, report));
    let buffer = fields.get("buffer").and_then(|node| buffer(node, report));
    let plan = RetryPlan {
        attempts: attempts.unwrap_or(default.attempts),
        on: on.unwrap_or(default.on),
        methods: methods.unwrap_or(default.methods),
        backoff: backoff.unwrap_or(default.backoff),
        budget: budget.unwrap_or(default.budget),
        buffer: buffer.unwrap_or(default.buffer),
    };
    warn_of_unused_keys(&fields, &plan, report);
    plan
}

/// A percentage, or a mapping.
fn budget<'s>(node: &YamlNode<'s>, report: &mut ProblemReport<'s>) -> RetryBudgetPlan {
    let mut plan = RetryBudgetPlan::default();
    let share = |node: &YamlNode<'_>, report: &mut ProblemReport<'_>| {
        scalar::ratio(node, "write `retry: off` to send every request once", report)
    };
    if !matches!(node.value, YamlValue::Mapping(_)) {
        plan.share = share(node, report).unwrap_or(plan.share);
        return plan;
    }
    let Some(fields) = Fields::open(node, &RETRY_BUDGET, report) else { return plan };
    plan.share = fields.get("share").and_then(|node| share(node, report)).unwrap_or(plan.share);
    plan.floor = fields.get("floor").and_then(|node| scalar::count_u32(node, report)).unwrap_or(plan.floor);
    plan
}

fn attempts(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<u32> {
    let count = scalar::count(node, report)?;
    if (1..=MAX_ATTEMPTS).contains(&count) {
        return u32::try_from(count).ok();
    }
    let finding = Finding::error(node, format!("`attempts` must be from 1 to {MAX_ATTEMPTS}, not {count}"));
    let hint = match count {
        0 => "the first attempt counts too; write `retry: off` to send every request once",
        _ => "more attempts multiply the load on an upstream that fails already",
    };
    report.push(finding.expected(format!("1 to {MAX_ATTEMPTS}")).hint(hint));
    None
}

fn causes(
    node: &YamlNode<'_>,
    timeouts: &TimeoutsPlan,
    report: &mut ProblemReport<'_>,
) -> Option<RetryCauses> {
    const EXPECTED: &str = "connect, reset, timeout, 429, a status from 500 to 599, or `5xx`";
    let mut causes = RetryCauses::default();
    let mut seen = HashSet::new();
    for item in scalar::one_or_many(node, "failure", report) {
        let Some(text) = scalar::text(item, EXPECTED, report) else { continue };
        if !seen.insert(text) {
            let finding = Finding::error(item, format!("duplicate failure {}", quote(text)));
            report.push(finding.hint("remove one of them"));
            continue;
        }
        match text {
            "connect" => causes.connect = true,
            "reset" => causes.reset = true,
            "timeout" => {
                causes.timeout = true;
                warn_of_no_time(item, timeouts, report);
            }
            "5xx" | "5XX" => causes.statuses.extend(500..=599),
            status => match status.parse::<u16>() {
                Ok(status @ (429 | 500..=599)) => causes.statuses.push(status),
                _ => report.push(unknown_cause(item, status).expected(EXPECTED)),
            },
        }
    }
    causes.statuses.sort_unstable();
    causes.statuses.dedup();
    (causes != RetryCauses::default()).then_some(causes)
}

fn unknown_cause(item: &YamlNode<'_>, text: &str) -> Finding {
    if text.parse::<u16>().is_ok_and(|status| (100..500).contains(&status)) {
        let finding = Finding::error(item, format!("status {text} is not a failure that a retry can fix"));
        return finding.hint("remove it");
    }
    let finding = Finding::error(item, format!("unknown failure {}", quote(text)));
    finding
        .hint("for example `[connect, reset, 503]`")
        .did_you_mean(nearest(text, RETRY_CAUSES.iter().copied()))
}

fn warn_of_no_time(item: &YamlNode<'_>, timeouts: &TimeoutsPlan, report: &mut ProblemReport<'_>) {
    if timeouts.request >= timeouts.total {
        let total = span_text(timeouts.total);
        let what =
            format!("a timeout is never retried: one attempt may take all of `timeouts.total`, {total}");
        let finding = Finding::warning(NodeRef::from(item), what);
        report.push(finding.hint("set `timeouts.request` to less than `timeouts.total`"));
    }
}

fn methods(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Vec<String> {
    let mut methods = Vec::new();
    let mut seen = HashSet::new();
    for item in scalar::one_or_many(node, "method", report) {
        let text = scalar::text(item, "a method, for example `GET`", report);
        let Some(method) = text.and_then(|text| scalar::method(item, text, report)) else { continue };
        if !seen.insert(method) {
            let finding = Finding::error(item, format!("duplicate method {}", quote(method)));
            report.push(finding.hint("remove one of them"));
            continue;
        }
        if matches!(method, "POST" | "PATCH") {
            let what = format!("{method} is not idempotent: a retry may do its work twice");
            let hint =
                "list it only if the upstream detects repeated requests, for example by an idempotency key";
            report.push(Finding::warning(NodeRef::from(item), what).hint(hint));
        }
        methods.push(method.to_owned());
    }
    methods
}

fn backoff<'s>(
    fields: &Fields<'_, 's>,
    timeouts: &TimeoutsPlan,
    report: &mut ProblemReport<'s>,
) -> Option<Backoff> {
    let default = RetryPlan::default().backoff;
    let [base, cap] =
        ["base", "cap"].map(|key| fields.get(key).and_then(|node| scalar::duration(node, report)));
    let jitter = fields
        .get("jitter")
        .and_then(|node| scalar::choice(node, "jitter", &Jitter::NAMES, &Jitter::ALL, report));
    if let (Some(base), Some(node)) = (base, fields.get("base"))
        && base >= timeouts.total
    {
        let what = format!(
            "no request is ever sent again: `base` is not shorter than `timeouts.total`, {}",
            span_text(timeouts.total)
        );
        report
            .push(Finding::warning(NodeRef::from(node), what).hint("use a shorter wait, for example `50ms`"));
    }
    let base = base.unwrap_or_else(|| default.base().min(cap.unwrap_or(default.base())));
    let cap = cap.unwrap_or_else(|| default.cap().max(base));
    let made = Backoff::new(base, cap, jitter.unwrap_or(default.jitter()));
    if let (Err(_), Some(node)) = (&made, fields.get("cap")) {
        let finding = Finding::error(node, format!("`cap` is shorter than `base` ({})", span_text(base)));
        report.push(finding.expected("`base` ≤ `cap`").hint("use a longer `cap`, or a shorter `base`"));
    }
    made.ok()
}

fn buffer(node: &YamlNode<'_>, report: &mut ProblemReport<'_>) -> Option<u64> {
    if is_word(node, OFF) {
        return Some(0);
    }
    let bytes = scalar::size(node, report)?;
    if bytes == 0 {
        let finding = Finding::error(node, "`buffer` must be at least 1 byte");
        report.push(finding.hint("write `buffer: off` to keep no request bodies"));
    } else if bytes > MAX_BUFFER {
        let finding = Finding::error(node, format!("`buffer` is too large: {}", size_text(bytes)));
        let expected = format!("at most {}", size_text(MAX_BUFFER));
        report.push(finding.expected(expected).hint("each request with a body may use this much memory"));
    }
    Some(bytes)
}

fn warn_of_unused_keys(fields: &Fields<'_, '_>, plan: &RetryPlan, report: &mut ProblemReport<'_>) {
    if plan.attempts == 1 {
        let mut unused = RETRY.keys.iter().filter(|key| key.name != "attempts");
        if let Some((key, node)) = unused.find_map(|key| Some((key, fields.get(key.name)?))) {
            let what = format!("`{}` has no effect: with `attempts: 1` nothing is sent again", key.name);
            let finding = Finding::warning(NodeRef::from(node), what);
            report.push(finding.hint("set `attempts: 2` or more, or write `retry: off`"));
        }
        return;
    }
    let RetryCauses { connect: _, reset, timeout, statuses } = &plan.on;
    if let Some(node) = fields.get("methods").filter(|_| !reset && !timeout && statuses.is_empty()) {
        let what = "`methods` has no effect: only failed connects are retried, with every method";
        let finding = Finding::warning(NodeRef::from(node), what);
        report.push(finding.hint("add failures to `on`, for example `reset`, or remove `methods`"));
    }
}
