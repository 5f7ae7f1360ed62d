use http::{HeaderValue, Request};
use tidegate_core::{AdaptiveConfig, Criticality};
use tidegate_tower::BoxError;
use tidegate_tower::load_shed::{LoadShedLayer, LoadShedder, Overload};
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
