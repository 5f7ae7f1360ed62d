use std::sync::Arc;

use http::{HeaderValue, Request, Response};
use tidegate_core::{AdaptiveConfig, Criticality, TimeSpan, Timestamp};
use tidegate_store::{Clock, ManualClock};
use tidegate_tower::BoxError;
use tidegate_tower::load_shed::{ByCriticalityHeader, LoadShedLayer, LoadShedder, Overload};
use tower::{ServiceBuilder, ServiceExt};

use crate::support::{Body, get, respond};

#[tokio::test]
async fn load_shed_full_service_rejects_sheddable_requests_and_admits_critical_ones() {
    let config = AdaptiveConfig { initial: 10, ..AdaptiveConfig::default() };
    let shedder = LoadShedder::new(config).unwrap();
    let service = ServiceBuilder::new()
        .layer(LoadShedLayer::new(shedder.clone()))
        .service_fn(|_: Request<Body>| async { Ok::<_, BoxError>(respond(200)) });
    let permits: Vec<_> = (0..7).map(|_| shedder.try_acquire(Criticality::CriticalPlus).unwrap()).collect();
    let send = |criticality: &'static str| {
        let mut request = get();
        request.headers_mut().insert("x-criticality", HeaderValue::from_static(criticality));
        service.clone().oneshot(request)
    };
    let error = send("sheddable").await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Overload { criticality: Criticality::Sheddable }));
    assert!(send("sheddable_plus").await.is_err());
    assert!(send("critical").await.is_ok());
    drop(permits);
    assert!(send("sheddable").await.is_ok());
    assert_eq!((shedder.limit().in_flight(), shedder.limit().rejected()), (0, 2));
}

/// The limit after 100 quick calls with `quick`, and then 100 usual ones.
async fn limit_after(quick: impl Fn() -> Result<Response<Body>, BoxError> + Copy) -> u64 {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    let shared = Arc::clone(&clock) as Arc<dyn Clock>;
    let shedder = LoadShedder::with_clock(AdaptiveConfig::default(), shared).unwrap();
    let service = ServiceBuilder::new().layer(LoadShedLayer::new(shedder.clone())).service_fn(
        move |request: Request<Body>| {
            let fails = request.headers().contains_key("x-fail");
            clock.advance(TimeSpan::from_millis(if fails { 10 } else { 100 }));
            async move { if fails { quick() } else { Ok(respond(200)) } }
        },
    );
    for _ in 0..100 {
        let mut request = get();
        request.headers_mut().insert("x-fail", HeaderValue::from_static("1"));
        let _ = service.clone().oneshot(request).await;
    }
    for _ in 0..100 {
        assert!(service.clone().oneshot(get()).await.is_ok());
    }
    shedder.limit().limit()
}

#[tokio::test]
async fn load_shed_with_calls_that_fail_at_once_keeps_its_limit() {
    assert_eq!(limit_after(|| Err("failed".into())).await, 20);
    for status in [400, 404, 408, 429, 500, 501, 503] {
        assert_eq!(limit_after(|| Ok(respond(status))).await, 20, "{status}");
    }
    let grpc_not_found = || {
        let mut response = respond(200);
        response.headers_mut().insert("grpc-status", HeaderValue::from_static("5"));
        Ok(response)
    };
    assert_eq!(limit_after(grpc_not_found).await, 20);
    assert!(limit_after(|| Ok(respond(200))).await < 20, "quick successes make the others look slow");
}

#[tokio::test]
async fn load_shed_measures_the_responses_that_it_is_told_to() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    let shared = Arc::clone(&clock) as Arc<dyn Clock>;
    let shedder = LoadShedder::with_clock(AdaptiveConfig::default(), shared).unwrap();
    let layer = LoadShedLayer::new(shedder.clone()).criticality(|_: &u64| Criticality::Critical);
    let service = ServiceBuilder::new().layer(layer.measure(|_: &u64| true)).service_fn(|millis: u64| {
        clock.advance(TimeSpan::from_millis(millis));
        async move { Ok::<_, BoxError>(millis) }
    });
    for millis in [10; 100].into_iter().chain([100; 100]) {
        assert!(service.clone().oneshot(millis).await.is_ok());
    }
    assert!(shedder.limit().limit() < 20);
}

#[tokio::test]
async fn load_shed_header_of_any_client_makes_no_request_more_important() {
    let shedder = LoadShedder::new(AdaptiveConfig { initial: 10, ..AdaptiveConfig::default() }).unwrap();
    let handler = |_: Request<Body>| async { Ok::<_, BoxError>(respond(200)) };
    let layer = LoadShedLayer::new(shedder.clone());
    let untrusted = ServiceBuilder::new().layer(layer.clone()).service_fn(handler);
    let trusting = layer.criticality(ByCriticalityHeader::trusted());
    let trusting = ServiceBuilder::new().layer(trusting).service_fn(handler);
    let request = || {
        let mut request = get();
        request.headers_mut().insert("x-criticality", HeaderValue::from_static("critical_plus"));
        request
    };
    let _permits: Vec<_> = std::iter::from_fn(|| shedder.try_acquire(Criticality::Critical).ok()).collect();
    let error = untrusted.oneshot(request()).await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Overload { criticality: Criticality::Critical }));
    assert!(trusting.oneshot(request()).await.is_ok());
}
