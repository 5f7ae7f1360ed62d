use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tidegate_core::{BreakerConfig, BreakerState, CallOutcome, Ratio, TimeSpan};
use tidegate_store::{Clock, ManualClock};
use tidegate_tower::breaker::{BreakerLayer, BreakerOpen, ByError, CircuitBreaker};
use tidegate_tower::{BoxError, LayerError};
use tokio::task::{JoinSet, yield_now};
use tokio::time::advance;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::support::{Body, Broken, TokioClock, get, is, respond};

fn breaker(config: BreakerConfig) -> CircuitBreaker {
    let config = BreakerConfig { open_jitter: Ratio::ZERO, ..config };
    CircuitBreaker::with_clock(config, TokioClock::shared()).unwrap()
}

/// A service that responds with the status that it is told.
fn service(
    breaker: &CircuitBreaker,
    status: &Arc<AtomicU16>,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = LayerError> + Clone + use<> {
    let status = Arc::clone(status);
    ServiceBuilder::new().layer(BreakerLayer::new(breaker.clone())).service_fn(move |_: Request<Body>| {
        let status = Arc::clone(&status);
        async move { Ok::<_, BoxError>(respond(status.load(Ordering::Relaxed))) }
    })
}

#[tokio::test(start_paused = true)]
async fn breaker_five_failures_open_rejection_is_immediate_and_one_probe_decides() {
    let (breaker, status) = (breaker(BreakerConfig::default()), Arc::new(AtomicU16::new(503)));
    let service = service(&breaker, &status);
    for _ in 0..5 {
        assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 503);
    }
    let error = service.clone().oneshot(get()).await.unwrap_err();
    assert!(is::<BreakerOpen>(&error), "{error}");
    advance(Duration::from_secs(30)).await;
    assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 503, "the probe fails");
    assert!(is::<BreakerOpen>(&service.clone().oneshot(get()).await.unwrap_err()));
    status.store(200, Ordering::Relaxed);
    advance(Duration::from_secs(30)).await;
    assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 200, "the probe succeeds");
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test]
async fn breaker_client_errors_and_429_never_open_it() {
    let status = Arc::new(AtomicU16::new(0));
    let breaker = breaker(BreakerConfig {
        failure_rate: Some(Ratio::from_percent(1)),
        min_calls: 1,
        ..Default::default()
    });
    let service = service(&breaker, &status);
    for code in (400..500).chain([501, 505]) {
        status.store(code, Ordering::Relaxed);
        for _ in 0..20 {
            assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), code);
        }
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    assert_eq!(breaker.status().consecutive_failures, 0);
}

#[tokio::test]
async fn breaker_by_error_counts_errors_of_any_service() {
    let breaker = breaker(BreakerConfig::default());
    let layer = BreakerLayer::new(breaker.clone()).classify(ByError);
    let service = ServiceBuilder::new()
        .layer(layer)
        .service_fn(|number: u32| async move { if number == 0 { Err(Broken) } else { Ok(number) } });
    assert_eq!(service.clone().oneshot(3).await.unwrap(), 3);
    for _ in 0..5 {
        assert!(is::<Broken>(&service.clone().oneshot(0).await.unwrap_err()));
    }
    assert!(is::<BreakerOpen>(&service.oneshot(3).await.unwrap_err()));
}

#[tokio::test]
async fn breaker_with_a_closure_classifies_results() {
    let breaker = breaker(BreakerConfig { failures: Some(1), ..Default::default() });
    let classify = |result: Result<&u32, &LayerError>| match result {
        Ok(number) if *number > 9 => CallOutcome::Failure,
        _ => CallOutcome::Neutral,
    };
    let service = ServiceBuilder::new()
        .layer(BreakerLayer::new(breaker.clone()).classify(classify))
        .service(service_fn(|number: u32| async move { Ok::<_, BoxError>(number) }));
    service.clone().oneshot(9).await.unwrap();
    assert_eq!(breaker.state(), BreakerState::Closed);
    service.oneshot(10).await.unwrap();
    assert_eq!(breaker.state(), BreakerState::Open);
}

/// Calls in flight.
#[derive(Default)]
struct CallCounts {
    in_flight: AtomicUsize,
    most: AtomicUsize,
    admitted: AtomicUsize,
}

impl CallCounts {
    fn start(self: &Arc<Self>) -> CountedCall {
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.admitted.fetch_add(1, Ordering::SeqCst);
        CountedCall(Arc::clone(self))
    }
}

/// A call that is in flight until it is dropped.
struct CountedCall(Arc<CallCounts>);

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// 10,000 concurrent callers; of the probes some hang until they are cancelled, some are cancelled at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_probes_in_flight_never_exceed_their_number_with_hung_and_cancelled_probes() {
    let open_for = TimeSpan::from_secs(1);
    let config = BreakerConfig {
        failures: Some(1),
        open_for,
        max_open_for: open_for,
        probes: 3,
        // The breaker stays half-open, so that all calls compete for the slots of probes.
        successes: u32::MAX,
        ..BreakerConfig::default()
    };
    // No time passes while the callers run, so a hung probe is never replaced.
    let clock = Arc::new(ManualClock::at(TokioClock::START));
    let breaker = CircuitBreaker::with_clock(config, Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
    breaker.try_acquire().unwrap().record(CallOutcome::Failure);
    clock.advance(TimeSpan::from_secs(2));
    let counts = Arc::new(CallCounts::default());
    let counter = Arc::clone(&counts);
    let service = ServiceBuilder::new()
        .layer(BreakerLayer::new(breaker.clone()).classify(ByError))
        .service_fn(move |hangs: bool| {
            let call = counter.start();
            async move {
                let _call = call;
                if hangs {
                    std::future::pending::<()>().await;
                }
                yield_now().await;
                Ok::<_, Broken>(())
            }
        });
    let mut callers = JoinSet::new();
    for number in 0..10_000_u32 {
        let service = service.clone();
        callers.spawn(async move {
            let mut call = std::pin::pin!(service.oneshot(number % 3 == 0));
            // Polled a few times, then dropped.
            for _ in 0..=number % 5 {
                tokio::select! {
                    biased;
                    _ = &mut call => return,
                    () = yield_now() => {}
                }
            }
        });
    }
    while let Some(result) = callers.join_next().await {
        result.unwrap();
    }
    let [in_flight, most, admitted] =
        [&counts.in_flight, &counts.most, &counts.admitted].map(|count| count.load(Ordering::SeqCst));
    assert!(most <= 3, "{most}");
    assert!(admitted > 3, "slots are reused: {admitted}");
    assert_eq!((in_flight, breaker.status().probes), (0, 0));
}

#[tokio::test]
async fn breaker_counts_calls_that_panic_as_failures() {
    let breaker = breaker(BreakerConfig::default());
    let panics = |is_sync: bool| {
        assert!(!is_sync, "expected by this test");
        async move {
            assert!(is_sync, "expected by this test");
            Ok::<_, Broken>(respond(200))
        }
    };
    let service = ServiceBuilder::new().layer(BreakerLayer::new(breaker.clone())).service_fn(panics);
    for is_sync in [true, false, true, false, true] {
        let call = service.clone();
        assert!(tokio::spawn(async move { call.oneshot(is_sync).await }).await.unwrap_err().is_panic());
    }
    assert_eq!(breaker.state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn breaker_with_a_hung_probe_tries_another_one_after_the_open_time() {
    let (breaker, status) = (breaker(BreakerConfig::default()), Arc::new(AtomicU16::new(503)));
    let service = service(&breaker, &status);
    for _ in 0..5 {
        service.clone().oneshot(get()).await.unwrap();
    }
    advance(Duration::from_secs(30)).await;
    let _hung = breaker.try_acquire().unwrap();
    status.store(200, Ordering::Relaxed);
    assert!(is::<BreakerOpen>(&service.clone().oneshot(get()).await.unwrap_err()));
    advance(Duration::from_secs(30)).await;
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
    assert_eq!(breaker.state(), BreakerState::Closed);
}
