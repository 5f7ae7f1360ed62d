use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response};
use tidegate_core::{Backoff, Jitter, Ratio, RetryBudget, TimeSpan};
use tidegate_store::Clock;
use tidegate_tower::breaker::BreakerOpen;
use tidegate_tower::deadline::Deadline;
use tidegate_tower::retry::{HttpRetry, RetryAdvice, RetryConfig, RetryLayer, SharedRetryBudget};
use tidegate_tower::{BoxError, LayerError};
use tokio::time::sleep;
use tower::limit::ConcurrencyLimitLayer;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::support::{Body, Broken, TokioClock, get, is, request, respond};

/// Each request that arrived: when (in seconds), and its body.
type Log = Arc<Mutex<Vec<(u64, Body)>>>;

/// A service that logs requests and responds by their number.
fn service(
    log: &Log,
    clock: &Arc<dyn Clock>,
    answer: fn(usize) -> Result<Response<Body>, BoxError>,
) -> impl tower::Service<Request<Body>, Response = Response<Body>, Error = BoxError, Future: Send>
+ Clone
+ Send
+ use<> {
    let (log, clock) = (Arc::clone(log), Arc::clone(clock));
    service_fn(move |request: Request<Body>| {
        let number = {
            let mut log = log.lock().unwrap();
            log.push((clock.now().since(TokioClock::START).as_secs_ceil(), request.into_body()));
            log.len()
        };
        async move { answer(number) }
    })
}

fn config(attempts: u32) -> RetryConfig {
    let backoff = Backoff::new(TimeSpan::from_secs(1), TimeSpan::from_secs(30), Jitter::None).unwrap();
    RetryConfig { attempts, backoff, ..RetryConfig::default() }
}

fn budget(clock: &Arc<dyn Clock>) -> SharedRetryBudget {
    SharedRetryBudget::with_clock(RetryBudget::default(), Arc::clone(clock))
}

fn times(log: &Log) -> Vec<u64> {
    log.lock().unwrap().iter().map(|(at, _)| *at).collect()
}

#[tokio::test(start_paused = true)]
async fn retry_plain_backoff_waits_1_2_4_8_and_gives_up() {
    let (log, clock) = (Log::default(), TokioClock::shared());
    let service = ServiceBuilder::new().layer(RetryLayer::new(config(5), budget(&clock))).service(service(
        &log,
        &clock,
        |_| Err(Broken.into()),
    ));
    assert!(is::<Broken>(&service.oneshot(get()).await.unwrap_err()));
    assert_eq!(times(&log), [0, 1, 3, 7, 15]);
}

#[tokio::test(start_paused = true)]
async fn retry_ends_with_the_first_success() {
    let (log, clock) = (Log::default(), TokioClock::shared());
    let answer = |number| Ok(respond(if number < 3 { 503 } else { 200 }));
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(config(5), budget(&clock)))
        .service(service(&log, &clock, answer));
    assert_eq!(service.oneshot(request(Method::PUT, "whole body")).await.unwrap().status(), 200);
    let bodies: Vec<_> = log.lock().unwrap().iter().map(|(_, body)| body.clone()).collect();
    assert_eq!(bodies, [b"whole body"; 3], "every attempt has the whole body");
}

#[tokio::test(start_paused = true)]
async fn retry_post_and_patch_are_not_replayed_unless_asked() {
    let (log, clock) = (Log::default(), TokioClock::shared());
    let layer = RetryLayer::new(config(3), budget(&clock));
    let inner = service(&log, &clock, |_| Ok(respond(503)));
    let service = ServiceBuilder::new().layer(layer.clone()).service(inner.clone());
    for method in [Method::POST, Method::PATCH] {
        service.clone().oneshot(request(method, "")).await.unwrap();
    }
    assert_eq!(log.lock().unwrap().len(), 2);
    let rules = HttpRetry::new().methods([Method::POST]);
    let service = ServiceBuilder::new().layer(layer.rules(rules)).service(inner);
    service.oneshot(request(Method::POST, "")).await.unwrap();
    assert_eq!(log.lock().unwrap().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn retry_request_that_cannot_be_cloned_is_sent_once() {
    let (log, clock) = (Log::default(), TokioClock::shared());
    let rules = HttpRetry::new()
        .clone_with(|request: &Request<Body>| request.body().is_empty().then(|| request.clone()));
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(config(2), budget(&clock)).rules(rules))
        .service(service(&log, &clock, |_| Ok(respond(503))));
    service.clone().oneshot(request(Method::PUT, "stream")).await.unwrap();
    assert_eq!(log.lock().unwrap().len(), 1);
    service.oneshot(get()).await.unwrap();
    assert_eq!(log.lock().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured_and_a_long_one_is_final() {
    let (log, clock) = (Log::default(), TokioClock::shared());
    let answer = |number| {
        let mut response = respond(429);
        let seconds = if number == 1 { "7" } else { "3600" };
        response.headers_mut().insert("retry-after", HeaderValue::from_static(seconds));
        Ok(response)
    };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(config(5), budget(&clock)))
        .service(service(&log, &clock, answer));
    assert_eq!(service.oneshot(get()).await.unwrap().headers()["retry-after"], "3600");
    assert_eq!(times(&log), [0, 7]);
}

#[tokio::test(start_paused = true)]
async fn retry_never_starts_after_the_deadline() {
    let (log, clock) = (Log::default(), TokioClock::shared());
    let service = ServiceBuilder::new().layer(RetryLayer::new(config(9), budget(&clock))).service(service(
        &log,
        &clock,
        |_| Ok(respond(503)),
    ));
    let deadline = Deadline::at(clock.now() + TimeSpan::from_secs(5));
    assert_eq!(deadline.scope(service.clone().oneshot(get())).await.unwrap().status(), 503);
    assert_eq!(times(&log), [0, 1, 3], "the next one would start at 7");
    assert_eq!(clock.now().since(TokioClock::START), TimeSpan::from_secs(3), "and nothing waits for it");
    log.lock().unwrap().clear();
    let mut request = get();
    request.extensions_mut().insert(Deadline::at(clock.now()));
    service.oneshot(request).await.unwrap();
    assert_eq!(log.lock().unwrap().len(), 1, "the deadline of the request");
}

#[tokio::test(start_paused = true)]
async fn retry_budget_bounds_the_load_of_a_failing_service() {
    let (log, clock) = (Log::default(), TokioClock::shared());
    let budget =
        SharedRetryBudget::with_clock(RetryBudget::new(Ratio::from_percent(10), 0), Arc::clone(&clock));
    let backoff = Backoff::new(TimeSpan::from_millis(1), TimeSpan::from_millis(1), Jitter::None).unwrap();
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(RetryConfig { backoff, ..config(5) }, budget.clone()))
        .service(service(&log, &clock, |_| Ok(respond(503))));
    let calls: Vec<_> = (0..1_000).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let sent = log.lock().unwrap().len();
    assert!((1_050..=1_100).contains(&sent), "1,000 failures cause at most 100 retries: {sent}");
}

#[tokio::test(start_paused = true)]
async fn retry_cancelled_while_it_waits_returns_its_grant() {
    let (log, clock) = (Log::default(), TokioClock::shared());
    let budget = budget(&clock);
    let service = ServiceBuilder::new().layer(RetryLayer::new(config(5), budget.clone())).service(service(
        &log,
        &clock,
        |_| Ok(respond(503)),
    ));
    let before = budget.remaining();
    let call = tokio::spawn(service.oneshot(get()));
    sleep(Duration::from_millis(500)).await;
    assert_eq!(budget.remaining(), before - 1);
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(budget.remaining(), before);
}

#[tokio::test(start_paused = true)]
async fn retry_rejection_by_a_layer_is_final() {
    let (log, clock) = (Log::default(), TokioClock::shared());
    let service = ServiceBuilder::new().layer(RetryLayer::new(config(5), budget(&clock))).service(service(
        &log,
        &clock,
        |_| Err(BreakerOpen { retry_after: None }.into()),
    ));
    assert!(is::<BreakerOpen>(&service.oneshot(get()).await.unwrap_err()));
    assert_eq!(log.lock().unwrap().len(), 1);
}

/// `ConcurrencyLimit` panics when it is called without being ready.
#[tokio::test(start_paused = true)]
async fn retry_of_any_service_by_a_closure_makes_the_service_ready_again() {
    let clock = TokioClock::shared();
    let rules = |number: &u32, result: Result<&u32, &LayerError>| match result {
        Err(_) if *number < 10 => RetryAdvice::Retry,
        _ => RetryAdvice::Stop,
    };
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(config(4), budget(&clock)).rules(rules))
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(|_: u32| async move { Err::<u32, _>(Broken) });
    for number in [1, 10] {
        assert!(is::<Broken>(&service.clone().oneshot(number).await.unwrap_err()));
    }
    assert_eq!(clock.now().since(TokioClock::START).as_secs_ceil(), 7, "1 + 2 + 4 seconds");
}
