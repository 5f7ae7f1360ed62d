//! Which rejections are refunded: those of layers between the limits and the handler, before the handler was called.

use std::future::Ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tidegate_core::{Algorithm, Backoff, BreakerConfig, Jitter, Ratio, Spec, TimeSpan};
use tidegate_store::{MemoryStore, Store};
use tidegate_tower::breaker::{BreakerLayer, CircuitBreaker};
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig, BulkheadFull, BulkheadLayer};
use tidegate_tower::fallback::FallbackServiceLayer;
use tidegate_tower::rate_limit::{OnStoreFailure, OneCounter, RateLimitLayer, RateLimitRule, RateLimiter};
use tidegate_tower::retry::{RetryConfig, RetryLayer, SharedRetryBudget};
use tidegate_tower::{BoxError, is_rejection};
use tokio::time::advance;
use tower::layer::layer_fn;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::rate_limit::SlowStore;
use crate::support::{Body, TokioClock, get, respond};

/// Three requests per hour.
fn layer() -> RateLimitLayer<MemoryStore, OneCounter> {
    layer_with(Arc::new(MemoryStore::with_cap(1 << 20)), OnStoreFailure::Deny)
}

fn layer_with<S: Store>(store: Arc<S>, on_store_failure: OnStoreFailure) -> RateLimitLayer<S, OneCounter> {
    let spec = Spec::new(3, TimeSpan::from_secs(3_600));
    let rule = RateLimitRule::new("default", Algorithm::FixedWindow, spec).unwrap();
    let limiter = RateLimiter::with_clock(vec![rule], store, TokioClock::shared(), on_store_failure);
    RateLimitLayer::new(limiter.unwrap(), OneCounter)
}

fn breaker(failures: u32) -> CircuitBreaker {
    let open_for = TimeSpan::from_secs(1);
    let config = BreakerConfig {
        failures: Some(failures),
        open_for,
        max_open_for: open_for,
        open_jitter: Ratio::ZERO,
        ..BreakerConfig::default()
    };
    CircuitBreaker::with_clock(config, TokioClock::shared()).unwrap()
}

/// Sends a hundred requests, one each two seconds; returns how often the handler was called.
async fn flood<S>(service: S, calls: &AtomicUsize) -> usize
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone,
{
    for _ in 0..100 {
        let _ = service.clone().oneshot(get()).await;
        advance(Duration::from_secs(2)).await;
    }
    calls.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn rate_limit_request_that_a_layer_around_the_handler_rejects_is_refunded() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1));
    let service = ServiceBuilder::new()
        .layer(layer().around(BulkheadLayer::new(bulkhead.clone())))
        .service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(respond(200)) });
    let permit = bulkhead.try_acquire().unwrap();
    for _ in 0..10 {
        service.clone().oneshot(get()).await.unwrap_err();
    }
    drop(permit);
    for _ in 0..3 {
        assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 200);
    }
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 429);
}

#[tokio::test(start_paused = true)]
async fn rate_limit_handler_that_returns_the_rejection_of_its_dependency_is_charged() {
    let dependency = breaker(1);
    dependency.breaker().force_open();
    let client = ServiceBuilder::new()
        .layer(BreakerLayer::new(dependency))
        .service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(respond(200)) });
    let handler = |calls: &Arc<AtomicUsize>| {
        let (client, calls) = (client.clone(), Arc::clone(calls));
        service_fn(move |request: Request<Body>| {
            calls.fetch_add(1, Ordering::SeqCst);
            client.clone().oneshot(request)
        })
    };
    let calls = Arc::new(AtomicUsize::new(0));
    let alone = ServiceBuilder::new().layer(layer()).service(handler(&calls));
    assert_eq!(flood(alone, &calls).await, 3);
    let calls = Arc::new(AtomicUsize::new(0));
    let inner = BulkheadLayer::new(Bulkhead::new(BulkheadConfig::new(5)));
    let around = ServiceBuilder::new().layer(layer().around(inner)).service(handler(&calls));
    assert_eq!(flood(around, &calls).await, 3);
}

#[tokio::test(start_paused = true)]
async fn rate_limit_retry_that_is_rejected_after_a_served_attempt_is_charged() {
    let calls = Arc::new(AtomicUsize::new(0));
    let backoff = Backoff::new(TimeSpan::from_millis(1), TimeSpan::from_millis(2), Jitter::None).unwrap();
    let retry = RetryConfig { attempts: 2, backoff, ..RetryConfig::default() };
    let inner = ServiceBuilder::new()
        .layer(RetryLayer::new(retry, SharedRetryBudget::default()))
        .layer(BreakerLayer::new(breaker(1)));
    let count = Arc::clone(&calls);
    let service = ServiceBuilder::new().layer(layer().around(inner.into_inner())).service_fn(
        move |_: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, BoxError>(respond(503)) }
        },
    );
    assert_eq!(flood(service, &calls).await, 3);
}

/// Calls the inner service from a task of its own, as a buffer does.
fn in_another_task<S>(
    inner: S,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = BoxError, Future: Send> + Clone
where
    S: Service<Request<Body>, Response = Response<Body>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    service_fn(move |request| {
        let call = inner.clone().oneshot(request);
        async { tokio::spawn(call).await.unwrap() }
    })
}

#[tokio::test(start_paused = true)]
async fn rate_limit_handler_in_another_task_is_charged() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let service = ServiceBuilder::new().layer(layer().around(layer_fn(in_another_task))).service_fn(
        move |_: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Err::<Response<Body>, _>(BoxError::from(BulkheadFull { concurrent: 1 })) }
        },
    );
    assert_eq!(flood(service, &calls).await, 3);
}

#[tokio::test(start_paused = true)]
async fn rate_limit_request_that_is_rejected_after_a_failure_of_the_store_is_refunded() {
    let store = Arc::new(SlowStore::new(true));
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1));
    let layer = layer_with(Arc::clone(&store), OnStoreFailure::Allow);
    let service = ServiceBuilder::new()
        .layer(layer.around(BulkheadLayer::new(bulkhead.clone())))
        .service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(respond(200)) });
    assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 200, "the store fails");
    store.fails.store(false, Ordering::SeqCst);
    let permit = bulkhead.try_acquire().unwrap();
    for _ in 0..3 {
        service.clone().oneshot(get()).await.unwrap_err();
        // Refunds to a store that is not immediate are made by a task.
        tokio::task::yield_now().await;
    }
    drop(permit);
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn rate_limit_request_that_a_fallback_serves_is_charged() {
    let breaker = breaker(1);
    breaker.breaker().force_open();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let secondary = service_fn(move |_: Request<Body>| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Err::<Response<Body>, _>(BoxError::from(BulkheadFull { concurrent: 1 })) }
    });
    let inner = ServiceBuilder::new()
        .layer(FallbackServiceLayer::new(secondary, is_rejection))
        .layer(BreakerLayer::new(breaker));
    let service = ServiceBuilder::new()
        .layer(layer().around(inner.into_inner()))
        .service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(respond(200)) });
    assert_eq!(flood(service, &calls).await, 3);
}

#[tokio::test(start_paused = true)]
async fn rate_limit_request_whose_handler_panics_is_charged() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let handler = service_fn(move |_: Request<Body>| -> Ready<Result<Response<Body>, BoxError>> {
        count.fetch_add(1, Ordering::SeqCst);
        panic!("before there is a future")
    });
    let slow = layer_with(Arc::new(SlowStore::new(false)), OnStoreFailure::Deny);
    let bulkhead = BulkheadLayer::new(Bulkhead::new(BulkheadConfig::new(5)));
    for service in [
        BoxCloneSyncService::new(layer().layer(handler.clone())),
        BoxCloneSyncService::new(layer().around(bulkhead.clone()).layer(handler.clone())),
        BoxCloneSyncService::new(slow.around(bulkhead).layer(handler)),
    ] {
        calls.store(0, Ordering::SeqCst);
        for _ in 0..10 {
            let _ = tokio::spawn(service.clone().oneshot(get())).await;
            // Refunds to a store that is not immediate are made by a task.
            tokio::task::yield_now().await;
        }
        assert_eq!(calls.load(Ordering::SeqCst), 3);
    }
}
