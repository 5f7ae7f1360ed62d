//! How far retries multiply the load when everything fails: 10,000 requests, up to three attempts each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tower::retry::RetryLayer as TowerRetryLayer;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_resilience::retry::RetryLayer as PeerRetryLayer;

use super::report::Report;
use super::retries::{ATTEMPTS, BASE, MIN_PER_SECOND, TowerPolicy, our_layer, peer_budget};
use super::service::{Call, CallFailed};

const REQUESTS: usize = 10_000;
const NAME: &str = "retry amplification, everything fails";

#[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    if !report.includes(NAME) {
        return Ok(());
    }
    println!("\n{NAME}, {REQUESTS} requests, up to {ATTEMPTS} attempts each");
    let unlimited = PeerRetryLayer::builder().max_attempts(ATTEMPTS).exponential_backoff(BASE).build();
    count("tower-resilience, no budget (its default)", |service| unlimited.layer(service))?;
    let limited =
        PeerRetryLayer::builder().max_attempts(ATTEMPTS).exponential_backoff(BASE).budget(peer_budget()?);
    let limited = limited.build();
    count("tower-resilience, a bucket of 10 per second", |service| limited.layer(service))?;
    count("tower, a budget of 10 % and 10 per second", |service| {
        TowerRetryLayer::new(TowerPolicy::new()).layer(service)
    })?;
    let ours = our_layer()?;
    let start = Instant::now();
    let attempts = count("tidegate, its default: 10 % and 10 per second", |service| ours.layer(service))?;
    // The budget allows the minimum in each second that has begun.
    let seconds = start.elapsed().as_secs() + 2;
    let minimum = u64::from(MIN_PER_SECOND) * seconds;
    let bar = 1.1 + minimum as f64 / REQUESTS as f64;
    report.bars.at_most(
        "attempts per request (1.1 plus the minimum)",
        attempts as f64 / REQUESTS as f64,
        bar,
    );
    Ok(())
}

/// Sends the requests one after the other. Waits take no time: the timers of the runtime are paused.
#[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
fn count<S>(name: &str, layer: impl FnOnce(FailingService) -> S) -> anyhow::Result<usize>
where
    S: Service<Call>,
{
    let attempts = Arc::new(AtomicUsize::new(0));
    let mut service = layer(failing_service(Arc::clone(&attempts)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(async {
        for _ in 0..REQUESTS {
            if let Ok(service) = service.ready().await {
                // Every call fails.
                let _ = service.call(Call::Fails).await;
            }
        }
    });
    let attempts = attempts.load(Ordering::Relaxed);
    println!("  {name:48} {:.3} attempts per request", attempts as f64 / REQUESTS as f64);
    Ok(attempts)
}

type FailingService = tower::util::BoxCloneService<Call, (), CallFailed>;

/// Fails, and counts its calls.
fn failing_service(attempts: Arc<AtomicUsize>) -> FailingService {
    let service = service_fn(move |_| {
        attempts.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Err(CallFailed))
    });
    FailingService::new(service)
}
