//! Futures of the whole stack that are dropped at every await point leak nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use tidegate_core::{AdaptiveConfig, Backoff, BreakerConfig, Jitter, Ratio, RetryBudget, TimeSpan};
use tidegate_store::MemoryStore;
use tidegate_tower::breaker::{BreakerLayer, CircuitBreaker};
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig, BulkheadLayer};
use tidegate_tower::deadline::DeadlineLayer;
use tidegate_tower::fallback::FallbackLayer;
use tidegate_tower::load_shed::{LoadShedLayer, LoadShedder};
use tidegate_tower::rate_limit::{OnStoreFailure, OneCounter, RateLimitLayer, RateLimitRule, RateLimiter};
use tidegate_tower::retry::{RetryConfig, RetryLayer, SharedRetryBudget};
use tidegate_tower::timeout::TimeoutLayer;
use tidegate_tower::{BoxError, LayerError};
use tokio::task::yield_now;
use tokio::time::{advance, sleep};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceBuilder, service_fn};

use crate::support::{Body, Broken, TokioClock, get, respond};

/// Everything that a call may hold.
struct Handles {
    breaker: CircuitBreaker,
    bulkhead: Bulkhead,
    shedder: LoadShedder,
    budget: SharedRetryBudget,
}

type Call = Pin<Box<dyn Future<Output = Result<Response<Body>, LayerError>> + Send>>;
type Stack = BoxCloneSyncService<Request<Body>, Response<Body>, LayerError>;

/// The whole stack, around a service that needs several polls and often fails.
fn stack() -> (Handles, Stack) {
    let clock = TokioClock::shared();
    let config = BreakerConfig {
        open_for: TimeSpan::from_millis(5),
        max_open_for: TimeSpan::from_millis(5),
        open_jitter: Ratio::ZERO,
        ..BreakerConfig::default()
    };
    let handles = Handles {
        breaker: CircuitBreaker::with_clock(config, Arc::clone(&clock)).unwrap(),
        bulkhead: Bulkhead::new(BulkheadConfig::new(4).queue(4, Duration::from_millis(20))),
        shedder: LoadShedder::with_clock(AdaptiveConfig::default(), Arc::clone(&clock)).unwrap(),
        budget: SharedRetryBudget::with_clock(RetryBudget::default(), Arc::clone(&clock)),
    };
    let rule = RateLimitRule::per_window("default", 1_000_000_000, TimeSpan::from_secs(1)).unwrap();
    let store = Arc::new(MemoryStore::with_cap(1 << 20));
    let limiter =
        RateLimiter::with_clock(vec![rule], store, Arc::clone(&clock), OnStoreFailure::Deny).unwrap();
    let backoff = Backoff::new(TimeSpan::from_millis(1), TimeSpan::from_millis(4), Jitter::Full).unwrap();
    let retry = RetryConfig { backoff, ..RetryConfig::default() };
    let flaky = service_fn(|_: Request<Body>| async {
        for _ in 0..fastrand::u32(0..3) {
            yield_now().await;
        }
        match fastrand::u32(0..5) {
            0 => Err(BoxError::from(Broken)),
            1 => Ok(respond(503)),
            2 => {
                sleep(Duration::from_millis(fastrand::u64(0..20))).await;
                Ok(respond(200))
            }
            _ => Ok(respond(200)),
        }
    });
    let stack = ServiceBuilder::new()
        .layer(FallbackLayer::new(
            |error: LayerError| {
                if fastrand::bool() { Ok(respond(200)) } else { Err(error) }
            },
        ))
        .layer(DeadlineLayer::new().clock(clock))
        .layer(RateLimitLayer::new(limiter, OneCounter))
        .layer(LoadShedLayer::new(handles.shedder.clone()))
        .layer(BulkheadLayer::new(handles.bulkhead.clone()))
        .layer(RetryLayer::new(retry, handles.budget.clone()))
        .layer(BreakerLayer::new(handles.breaker.clone()))
        .layer(TimeoutLayer::new(Duration::from_millis(10)))
        .service(flaky);
    (handles, BoxCloneSyncService::new(stack))
}

/// Polls calls a random number of times each and drops them: 100,000 calls, up to 16 at a time, while time moves on.
#[tokio::test(start_paused = true)]
async fn cancellation_of_random_calls_of_the_whole_stack_leaks_no_permit() {
    fastrand::seed(15);
    let (handles, mut service) = stack();
    let mut running: Vec<(u32, Call)> = Vec::new();
    let (mut completed, mut dropped, mut started) = (0_u32, 0_u32, 0_u32);
    let mut cx = Context::from_waker(Waker::noop());
    while started < 100_000 || !running.is_empty() {
        while started < 100_000 && running.len() < 16 {
            let mut request = get();
            if fastrand::bool() {
                request.headers_mut().insert("x-request-deadline-ms", HeaderValue::from_static("30"));
            }
            assert!(service.poll_ready(&mut cx).is_ready());
            running.push((fastrand::u32(0..12), service.call(request)));
            started += 1;
        }
        let index = fastrand::usize(0..running.len());
        let (polls_left, call) = &mut running[index];
        if *polls_left == 0 {
            drop(running.swap_remove(index));
            dropped += 1;
        } else if let Poll::Ready(_result) = call.as_mut().poll(&mut cx) {
            drop(running.swap_remove(index));
            completed += 1;
        } else {
            *polls_left -= 1;
        }
        if fastrand::u32(0..50) == 0 {
            advance(Duration::from_millis(1)).await;
        }
    }
    assert!(completed > 10_000 && dropped > 10_000, "{completed} completed, {dropped} dropped");
    assert_eq!((handles.bulkhead.in_use(), handles.bulkhead.waiting()), (0, 0));
    assert_eq!(handles.shedder.limit().in_flight(), 0);
    assert_eq!(handles.breaker.status().probes, 0);
    assert!(handles.breaker.status().opened > 0, "probes were made");
    // Everything is free again, and every grant that was not spent has returned.
    let permits: Vec<_> = std::iter::from_fn(|| handles.bulkhead.try_acquire().ok()).collect();
    assert_eq!(permits.len(), 4);
    advance(Duration::from_secs(11)).await;
    assert_eq!(handles.budget.remaining(), u64::from(RetryBudget::MIN_PER_SECOND));
}
