use tidegate_core::CallOutcome;
use tidegate_tower::breaker::{BreakerLayer, ByError, CircuitBreaker};
use tidegate_tower::fallback::{FallbackLayer, FallbackServiceLayer};
use tidegate_tower::{BoxError, LayerError, is_rejection};
use tower::limit::ConcurrencyLimitLayer;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::support::{Broken, is};

fn open_breaker() -> CircuitBreaker {
    let breaker = CircuitBreaker::new(tidegate_core::BreakerConfig::default()).unwrap();
    for _ in 0..5 {
        breaker.try_acquire().unwrap().record(CallOutcome::Failure);
    }
    breaker
}

#[tokio::test]
async fn fallback_closure_replaces_selected_errors_only() {
    let fallback = |error: LayerError| if is_rejection(&error) { Ok("cached") } else { Err(error) };
    let broken = service_fn(|(): ()| async { Err::<&str, _>(Broken) });
    let service = ServiceBuilder::new().layer(FallbackLayer::new(fallback)).service(broken);
    assert!(is::<Broken>(&service.oneshot(()).await.unwrap_err()));
    let service = ServiceBuilder::new()
        .layer(FallbackLayer::new(fallback))
        .layer(BreakerLayer::new(open_breaker()).classify(ByError))
        .service(broken);
    assert_eq!(service.oneshot(()).await.unwrap(), "cached");
}

#[tokio::test]
async fn fallback_service_gets_the_requests_that_were_rejected() {
    let replica = service_fn(|number: u32| async move { Ok::<_, BoxError>(number + 100) });
    let primary = service_fn(|number: u32| async move { if number == 0 { Err(Broken) } else { Ok(number) } });
    let closed =
        ServiceBuilder::new().layer(FallbackServiceLayer::new(replica, is_rejection)).service(primary);
    assert_eq!(closed.clone().oneshot(1).await.unwrap(), 1);
    assert!(is::<Broken>(&closed.oneshot(0).await.unwrap_err()), "the primary service had the request");
    let open = ServiceBuilder::new()
        .layer(FallbackServiceLayer::new(replica, is_rejection))
        .layer(BreakerLayer::new(open_breaker()).classify(ByError))
        .service(primary);
    assert_eq!(open.oneshot(1).await.unwrap(), 101);
}

/// `ConcurrencyLimit` panics when it is called without being ready.
#[tokio::test]
async fn fallback_service_is_made_ready_before_it_is_called() {
    let replica = ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(1))
        .service_fn(|number: u32| async move { Ok::<_, BoxError>(number + 100) });
    let service = ServiceBuilder::new()
        .layer(FallbackServiceLayer::new(replica, is_rejection))
        .layer(BreakerLayer::new(open_breaker()).classify(ByError))
        .service_fn(|number: u32| async move { Ok::<_, BoxError>(number) });
    let (first, second) = tokio::join!(service.clone().oneshot(1), service.clone().oneshot(2));
    assert_eq!((first.unwrap(), second.unwrap()), (101, 102));
}
