use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderValue, Request};
use tidegate_core::TimeSpan;
use tidegate_tower::deadline::{Deadline, DeadlineExceeded, DeadlineLayer, OutgoingDeadlineLayer};
use tidegate_tower::{BoxError, find_cause};
use tokio::time::sleep;
use tower::{ServiceBuilder, ServiceExt};

use crate::support::{Body, NextFailed, TokioClock, get, is, respond};

fn with_deadline(millis: &'static str) -> Request<Body> {
    let mut request = get();
    request.headers_mut().insert("x-request-deadline-ms", HeaderValue::from_static(millis));
    request
}

/// Sets a flag when it is dropped.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn deadline_of_a_request_is_known_inside_and_cancels_the_work_when_it_passes() {
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_cancelled);
    let expected = Deadline::at(TokioClock::START + TimeSpan::from_millis(250));
    let service = ServiceBuilder::new().layer(DeadlineLayer::new().clock(TokioClock::shared())).service_fn(
        move |request: Request<Body>| {
            assert_eq!(Deadline::current(), Some(expected), "in `call`");
            assert_eq!(request.extensions().get(), Some(&expected));
            let guard = SetOnDrop(Arc::clone(&flag));
            async move {
                let _guard = guard;
                assert_eq!(Deadline::current(), Some(expected), "in the future");
                sleep(Duration::from_secs(1)).await;
                Ok::<_, BoxError>(respond(200))
            }
        },
    );
    let mut call = std::pin::pin!(service.oneshot(with_deadline("250")));
    let error = (&mut call).await.unwrap_err();
    assert!(is::<DeadlineExceeded>(&error));
    assert!(is_cancelled.load(Ordering::SeqCst), "before the future is dropped");
}

#[tokio::test(start_paused = true)]
async fn deadline_that_has_passed_starts_nothing() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let service = ServiceBuilder::new()
        .layer(DeadlineLayer::new().clock(TokioClock::shared()).at_most(Duration::from_secs(1)))
        .service_fn(move |_: Request<Body>| {
            counter.fetch_add(1, Ordering::SeqCst);
            async {
                sleep(Duration::from_secs(2)).await;
                Ok::<_, BoxError>(respond(200))
            }
        });
    assert!(is::<DeadlineExceeded>(&service.clone().oneshot(with_deadline("0")).await.unwrap_err()));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    for request in [get(), with_deadline("60000")] {
        assert!(
            is::<DeadlineExceeded>(&service.clone().oneshot(request).await.unwrap_err()),
            "the service's own"
        );
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// A chain of three services that work for five seconds each before they call the next.
#[tokio::test(start_paused = true)]
async fn deadline_of_thirty_seconds_leaves_25_20_and_15_along_a_chain() {
    let clock = TokioClock::shared();
    let remaining = |request: &Request<Body>| {
        let value = &request.headers()["x-request-deadline-ms"];
        value.to_str().unwrap().parse::<u64>().unwrap()
    };
    let last = ServiceBuilder::new()
        .layer(DeadlineLayer::new().clock(Arc::clone(&clock)))
        .service_fn(move |request: Request<Body>| async move { Ok::<_, BoxError>(vec![remaining(&request)]) })
        .map_err(NextFailed)
        .boxed_clone();
    let chain = (0..3).fold(last, |next, _| {
        let next =
            ServiceBuilder::new().layer(OutgoingDeadlineLayer::new().clock(Arc::clone(&clock))).service(next);
        ServiceBuilder::new()
            .layer(DeadlineLayer::new().clock(Arc::clone(&clock)))
            .service_fn(move |request: Request<Body>| {
                let next = next.clone();
                async move {
                    sleep(Duration::from_secs(5)).await;
                    let mut seen = next.oneshot(get()).await?;
                    seen.push(remaining(&request));
                    Ok::<_, BoxError>(seen)
                }
            })
            .map_err(NextFailed)
            .boxed_clone()
    });
    let seen = chain.clone().oneshot(with_deadline("30000")).await.unwrap();
    assert_eq!(seen, [15_000, 20_000, 25_000, 30_000]);
    // A request without a deadline gets one from the first service, and the hops see 30, 25 and 20 s.
    let front = ServiceBuilder::new()
        .layer(DeadlineLayer::new().clock(Arc::clone(&clock)).at_most(Duration::from_secs(30)))
        .layer(OutgoingDeadlineLayer::new().clock(Arc::clone(&clock)))
        .service(chain.clone());
    assert_eq!(front.oneshot(get()).await.unwrap()[1..], [20_000, 25_000, 30_000]);
    let error = chain.oneshot(with_deadline("12000")).await.unwrap_err();
    assert!(find_cause::<DeadlineExceeded>(&error.0).is_some());
}

#[tokio::test(start_paused = true)]
async fn deadline_outgoing_request_that_is_too_late_is_not_sent() {
    let clock = TokioClock::shared();
    let service = ServiceBuilder::new()
        .layer(OutgoingDeadlineLayer::new().clock(Arc::clone(&clock)))
        .service_fn(|request: Request<Body>| async move { Ok::<_, BoxError>(request) });
    let sent = service.clone().oneshot(get()).await.unwrap();
    assert!(sent.headers().is_empty(), "no deadline, no header");
    let deadline = Deadline::at(clock.now() + TimeSpan::from_secs(1));
    let sent = deadline.scope(service.clone().oneshot(get())).await.unwrap();
    assert_eq!(sent.headers()["x-request-deadline-ms"], "1000");
    tokio::time::advance(Duration::from_secs(1)).await;
    let error = deadline.scope(service.oneshot(get())).await.unwrap_err();
    assert!(is::<DeadlineExceeded>(&error));
}

#[tokio::test(start_paused = true)]
async fn deadline_of_a_request_never_extends_that_of_its_task() {
    let now = TokioClock::START;
    let [early, late] = [1, 2].map(|seconds| Deadline::at(now + TimeSpan::from_secs(seconds)));
    for (own, of_task) in [(early, late), (late, early)] {
        let mut request = get();
        request.extensions_mut().insert(own);
        assert_eq!(of_task.sync_scope(|| Deadline::of_request(&request)), Some(early));
    }
}
