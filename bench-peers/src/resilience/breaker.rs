//! A circuit breaker around a service that is ready: closed, and open after five failures.

use std::time::Duration;

use tidegate_core::{BreakerConfig, TimeSpan};
use tidegate_tower::breaker::{BreakerLayer, ByError, CircuitBreaker};
use tower::Layer;
use tower_resilience::circuitbreaker::CircuitBreakerLayer;

use super::race::{Contender, Course};
use super::report::{Report, Work, full_name};
use super::service::{Call, ReadyService};

/// Failures in a row that open the breaker.
const FAILURES: u32 = 5;
/// Longer than a run.
const OPEN_FOR: Duration = Duration::from_hours(1);

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let requests = |_, _, count| vec![Call::Succeeds; count];
    for (threads, name, bar) in [
        (1, "breaker, closed", Some(0.5)),
        (2, "breaker, closed", Some(0.5)),
        (1, "breaker, open", Some(0.5)),
        (2, "breaker, open", None),
    ] {
        if !report.includes(&full_name(name, threads)) {
            continue;
        }
        let contenders = contenders()?;
        let is_open = name.ends_with("open");
        if is_open {
            for contender in &contenders {
                contender.call_all(vec![Call::Fails; FAILURES as usize])?;
            }
        }
        let course = Course { threads, succeeds: !is_open, requests: &requests };
        report.measure(Work { name, bar }, &course, &contenders)?;
    }
    Ok(())
}

fn contenders() -> anyhow::Result<[Contender<Call>; 2]> {
    let peer = CircuitBreakerLayer::builder()
        .consecutive_failures(FAILURES as usize)
        .wait_duration_in_open(OPEN_FOR)
        .permitted_calls_in_half_open(1)
        .build()?;
    let open_for = TimeSpan::from_secs(OPEN_FOR.as_secs());
    let config = BreakerConfig {
        failures: Some(FAILURES),
        open_for,
        max_open_for: open_for,
        probes: 1,
        ..BreakerConfig::default()
    };
    let ours = BreakerLayer::new(CircuitBreaker::new(config)?).classify(ByError);
    Ok([
        Contender::new("tower-resilience", peer.layer(ReadyService)),
        Contender::new("tidegate", ours.layer(ReadyService)),
    ])
}
