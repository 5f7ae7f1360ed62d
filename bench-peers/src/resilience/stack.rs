//! The whole stack around a service: bulkhead, retry with a budget, breaker and timeout.

use std::time::Duration;

use tidegate_core::BreakerConfig;
use tidegate_tower::breaker::{BreakerLayer, ByError, CircuitBreaker};
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig, BulkheadLayer};
use tidegate_tower::timeout::TimeoutLayer;
use tower::{Service, ServiceBuilder};
use tower_resilience::bulkhead::BulkheadLayer as PeerBulkheadLayer;
use tower_resilience::circuitbreaker::CircuitBreakerLayer;
use tower_resilience::retry::RetryLayer as PeerRetryLayer;
use tower_resilience::timelimiter::TimeLimiterLayer;

use super::race::{Contender, Course};
use super::report::{Report, Work, full_name};
use super::retries::{ATTEMPTS, BASE, TowerPolicy, our_layer, peer_budget};
use super::service::{Call, CallFailed, ReadyService, WaitingService};

const CONCURRENT: usize = 1_000;
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let ready = "stack around a ready service";
    for (threads, bar) in [(1, Some(0.7)), (2, None)] {
        if report.includes(&full_name(ready, threads)) {
            measure(report, Work { name: ready, bar }, threads, &contenders(ReadyService)?)?;
        }
    }
    let waiting = "stack around a service that waits once";
    if report.includes(&full_name(waiting, 1)) {
        measure(report, Work { name: waiting, bar: None }, 1, &contenders(WaitingService)?)?;
    }
    Ok(())
}

fn measure(
    report: &mut Report,
    work: Work,
    threads: usize,
    contenders: &[Contender<Call>],
) -> anyhow::Result<()> {
    let requests = |_, _, count| vec![Call::Succeeds; count];
    report.measure(work, &Course { threads, succeeds: true, requests: &requests }, contenders)
}

/// The same stack three times. Five failures in a row open the breakers for 30 s.
fn contenders<S>(service: S) -> anyhow::Result<[Contender<Call>; 3]>
where
    S: Service<Call, Response = (), Error = CallFailed> + Clone + Send + 'static,
    S::Future: Send,
{
    let breaker = BreakerConfig::default();
    let failures = breaker.failures.unwrap_or_default() as usize;
    let open_for = Duration::from_micros(breaker.open_for.as_micros());
    let peer = ServiceBuilder::new()
        .layer(PeerBulkheadLayer::builder().max_concurrent_calls(CONCURRENT).reject_when_full().build()?)
        .layer(
            PeerRetryLayer::builder()
                .max_attempts(ATTEMPTS)
                .exponential_backoff(BASE)
                .budget(peer_budget()?)
                .build(),
        )
        .layer(
            CircuitBreakerLayer::builder()
                .consecutive_failures(failures)
                .wait_duration_in_open(open_for)
                .build()?,
        )
        .layer(TimeLimiterLayer::builder().timeout_duration(TIMEOUT).build())
        .service(service.clone());
    let tower = ServiceBuilder::new()
        .load_shed()
        .concurrency_limit(CONCURRENT)
        .retry(TowerPolicy::new())
        .timeout(TIMEOUT)
        .service(service.clone());
    let ours = ServiceBuilder::new()
        .layer(BulkheadLayer::new(Bulkhead::new(BulkheadConfig::new(CONCURRENT))))
        .layer(our_layer()?)
        .layer(BreakerLayer::new(CircuitBreaker::new(breaker)?).classify(ByError))
        .layer(TimeoutLayer::new(TIMEOUT))
        .service(service);
    Ok([
        Contender::new("tower-resilience", peer),
        Contender::new("tower (load shed, concurrency limit; no breaker)", tower),
        Contender::new("tidegate", ours),
    ])
}
