//! Services that are not ready: the wait for them is bounded, and their errors count.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tidegate_core::{BreakerConfig, BreakerState, TimeSpan};
use tidegate_tower::LayerError;
use tidegate_tower::breaker::{BreakerLayer, BreakerOpen, CircuitBreaker};
use tidegate_tower::deadline::{Deadline, DeadlineExceeded, DeadlineLayer, OutgoingDeadlineLayer};
use tidegate_tower::timeout::{AttemptTimeout, TimeoutLayer};
use tokio::time::timeout;
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::support::{Body, Broken, TokioClock, get, is, respond};

/// Never ready.
#[derive(Clone)]
struct Unready;

impl Service<Request<Body>> for Unready {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn call(&mut self, _request: Request<Body>) -> Self::Future {
        unreachable!("called although it is not ready")
    }
}

/// The error of a call to a service that never becomes ready.
async fn error_of<S>(service: S) -> LayerError
where
    S: Service<Request<Body>, Response = Response<Body>, Error = LayerError>,
{
    let bounded = timeout(Duration::from_mins(1), service.oneshot(get())).await;
    bounded.expect("the wait is bounded").unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn timeout_and_deadline_bound_the_wait_for_a_service_that_is_not_ready() {
    let after = Duration::from_secs(5);
    let error = error_of(ServiceBuilder::new().layer(TimeoutLayer::new(after)).service(Unready)).await;
    assert_eq!(error.downcast_ref(), Some(&AttemptTimeout { after }));
    let layer = DeadlineLayer::new().at_most(after);
    assert!(is::<DeadlineExceeded>(&error_of(ServiceBuilder::new().layer(layer).service(Unready)).await));
    let layer = OutgoingDeadlineLayer::new().clock(TokioClock::shared());
    let deadline = Deadline::at(TokioClock::START + TimeSpan::from_secs(5));
    let call = error_of(ServiceBuilder::new().layer(layer).service(Unready));
    assert!(is::<DeadlineExceeded>(&deadline.scope(call).await));
}

#[tokio::test(start_paused = true)]
async fn timeout_after_a_wait_in_vain_waits_again() {
    let service = ServiceBuilder::new().layer(TimeoutLayer::new(Duration::from_secs(5))).service(Unready);
    let mut service = service;
    for _ in 0..3 {
        let call = timeout(Duration::from_secs(6), service.ready()).await.unwrap().unwrap().call(get());
        assert!(is::<AttemptTimeout>(&call.await.unwrap_err()));
    }
}

#[tokio::test(start_paused = true)]
async fn wait_that_its_caller_gave_up_is_not_that_of_the_next_call() {
    let after = Duration::from_secs(5);
    let mut service = ServiceBuilder::new().layer(TimeoutLayer::new(after)).service(Unready);
    assert!(timeout(Duration::from_secs(1), service.ready()).await.is_err(), "the caller gives up");
    tokio::time::sleep(Duration::from_mins(1)).await;
    let waited = timeout(after.saturating_sub(Duration::from_millis(1)), service.ready()).await;
    assert!(waited.is_err(), "the next caller waits as long as every other");
    let call = timeout(Duration::from_millis(2), service.ready()).await.unwrap().unwrap().call(get());
    assert!(is::<AttemptTimeout>(&call.await.unwrap_err()));
}

#[tokio::test(start_paused = true)]
async fn breaker_opens_for_a_service_that_never_becomes_ready_and_then_rejects_at_once() {
    let breaker = CircuitBreaker::with_clock(BreakerConfig::default(), TokioClock::shared()).unwrap();
    let service = ServiceBuilder::new()
        .layer(BreakerLayer::new(breaker.clone()))
        .layer(TimeoutLayer::new(Duration::from_secs(5)))
        .service(Unready);
    for _ in 0..5 {
        assert!(is::<AttemptTimeout>(&error_of(service.clone()).await));
    }
    assert_eq!(breaker.state(), BreakerState::Open);
    let rejected = timeout(Duration::from_millis(1), service.oneshot(get())).await;
    assert!(is::<BreakerOpen>(&rejected.expect("an open breaker does not wait").unwrap_err()));
    let unbounded = ServiceBuilder::new().layer(BreakerLayer::new(breaker)).service(Unready);
    assert!(is::<BreakerOpen>(&error_of(unbounded).await));
}

/// Fails before any call.
#[derive(Clone)]
struct Unusable;

impl Service<Request<Body>> for Unusable {
    type Response = Response<Body>;
    type Error = Broken;
    type Future = Ready<Result<Response<Body>, Broken>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Err(Broken))
    }

    fn call(&mut self, _request: Request<Body>) -> Self::Future {
        ready(Ok(respond(200)))
    }
}

#[tokio::test(start_paused = true)]
async fn breaker_counts_errors_of_readiness() {
    let breaker = CircuitBreaker::with_clock(BreakerConfig::default(), TokioClock::shared()).unwrap();
    let service = ServiceBuilder::new().layer(BreakerLayer::new(breaker.clone())).service(Unusable);
    for _ in 0..5 {
        assert!(is::<Broken>(&service.clone().oneshot(get()).await.unwrap_err()));
    }
    assert_eq!(breaker.state(), BreakerState::Open);
}
