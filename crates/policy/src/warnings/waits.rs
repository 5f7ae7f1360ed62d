//! Leaky buckets that never hold what they are said to hold, because it would wait too long.

use tidegate_core::{Algorithm, TimeSpan};

use crate::compile::WarningTargets;
use crate::plan::{Plan, Rule};
use crate::raw::{Finding, ProblemReport};
use crate::units::span_text;

pub(super) fn find(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    for rule in plan.rate_limits.iter().filter(|rule| rule.algorithm() == Algorithm::LeakyBucket) {
        let burst = rule.burst.unwrap_or(rule.requests);
        let usable = usable_burst(rule);
        // A burst that was not written is an upper bound like any other default: it need not be reached.
        let is_wasted = usable < burst && (rule.burst.is_some() || usable == 1);
        if !is_wasted {
            continue;
        }
        let max_wait = span_text(rule.longest_wait());
        let what = if usable == 1 {
            let apart = span_text(wait_of(rule, 2));
            format!("no request ever waits: departures are {apart} apart, and `max_wait` is {max_wait}")
        } else {
            format!(
                "the bucket never holds more than {usable} of {burst}: the next would wait over {max_wait}"
            )
        };
        let longest = span_text(wait_of(rule, burst));
        let hint = format!("set `max_wait: {longest}` to use all of it, or `burst: {usable}`");
        report.push(Finding::warning(targets.rule(rule.id), what).hint(hint));
    }
}

/// How many requests of cost 1 a bucket ever holds: the last departs within the longest wait.
fn usable_burst(rule: &Rule) -> u64 {
    let ahead = u128::from(rule.longest_wait().as_micros()) * u128::from(rule.requests);
    let ahead = ahead / u128::from(rule.window.as_micros().max(1));
    u64::try_from(ahead).unwrap_or(u64::MAX).saturating_add(1)
}

/// How long the last of so many waits, rounded up to what reads well: milliseconds, or seconds if there are many.
fn wait_of(rule: &Rule, requests: u64) -> TimeSpan {
    let micros = u128::from(requests.saturating_sub(1)) * u128::from(rule.window.as_micros());
    let micros = micros.div_ceil(u128::from(rule.requests.max(1)));
    let round = if micros > 10_000_000 { 1_000_000 } else { 1_000 };
    TimeSpan::from_micros(u64::try_from(micros.div_ceil(round) * round).unwrap_or(u64::MAX))
}
