//! Warns about leaky buckets that cannot use their burst within `max_wait`.

use tidegate_core::{Algorithm, TimeSpan};

use crate::compile::WarningTargets;
use crate::plan::{Plan, Rule};
use crate::raw::{Finding, ProblemReport};
use crate::units::span_text;

pub(super) fn find(plan: &Plan, targets: &WarningTargets, report: &mut ProblemReport<'_>) {
    for rule in plan.rate_limits.iter().filter(|rule| rule.algorithm() == Algorithm::LeakyBucket) {
        let burst = rule.burst.unwrap_or(rule.requests);
        let usable = usable_burst(rule);
        // A default burst is only an upper bound, so warn only if no request can wait at all.
        let is_wasted = usable < burst && (rule.burst.is_some() || usable == 1);
        if !is_wasted {
            continue;
        }
        let max_wait = span_text(rule.longest_wait());
        let what = if usable == 1 {
            let apart = span_text(wait_of(rule, 2));
            format!("no request ever waits: departures are {apart} apart, but `max_wait` is {max_wait}")
        } else {
            format!(
                "only {usable} of the {burst} requests of `burst` fit: the next would wait longer than `max_wait`, {max_wait}"
            )
        };
        let longest = span_text(wait_of(rule, burst));
        let hint = format!("set `max_wait: {longest}` to use the whole burst, or `burst: {usable}`");
        report.push(Finding::warning(targets.rule(rule.id), what).hint(hint));
    }
}

/// Returns how many requests of cost 1 the bucket can hold: the last one must depart within `max_wait`.
fn usable_burst(rule: &Rule) -> u64 {
    let ahead = u128::from(rule.longest_wait().as_micros()) * u128::from(rule.requests);
    let ahead = ahead / u128::from(rule.window.as_micros().max(1));
    u64::try_from(ahead).unwrap_or(u64::MAX).saturating_add(1)
}

/// Returns how long the last of `requests` waits, rounded up to milliseconds, or to seconds above 10 s.
fn wait_of(rule: &Rule, requests: u64) -> TimeSpan {
    let micros = u128::from(requests.saturating_sub(1)) * u128::from(rule.window.as_micros());
    let micros = micros.div_ceil(u128::from(rule.requests.max(1)));
    let round = if micros > 10_000_000 { 1_000_000 } else { 1_000 };
    TimeSpan::from_micros(u64::try_from(micros.div_ceil(round) * round).unwrap_or(u64::MAX))
}
