use std::sync::Arc;
use std::time::Duration;

use tidegate_tower::BoxError;
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig, BulkheadFull, BulkheadLayer};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tower::limit::ConcurrencyLimitLayer;
use tower::{ServiceBuilder, ServiceExt};

use crate::support::is;

#[tokio::test(start_paused = true)]
async fn bulkhead_full_service_queues_one_call_and_rejects_the_next() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1).queue(1, Duration::from_millis(500)));
    let finish = Arc::new(Notify::new());
    let service = {
        let finish = Arc::clone(&finish);
        ServiceBuilder::new().layer(BulkheadLayer::new(bulkhead.clone())).service_fn(move |number: u32| {
            let finish = Arc::clone(&finish);
            async move {
                finish.notified().await;
                Ok::<_, BoxError>(number)
            }
        })
    };
    let first = tokio::spawn(service.clone().oneshot(1));
    yield_now().await;
    let second = tokio::spawn(service.clone().oneshot(2));
    yield_now().await;
    assert_eq!((bulkhead.in_use(), bulkhead.waiting()), (1, 1));
    assert!(is::<BulkheadFull>(&service.clone().oneshot(3).await.unwrap_err()));
    finish.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), 1);
    finish.notify_one();
    assert_eq!(second.await.unwrap().unwrap(), 2);
    assert_eq!((bulkhead.in_use(), bulkhead.waiting(), bulkhead.rejected()), (0, 0, 1));
}

/// `ConcurrencyLimit` panics when it is called without being ready.
#[tokio::test(start_paused = true)]
async fn bulkhead_call_that_waited_uses_the_service_that_was_ready() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1).queue(10, Duration::from_secs(1)));
    let service = ServiceBuilder::new()
        .layer(BulkheadLayer::new(bulkhead.clone()))
        .layer(ConcurrencyLimitLayer::new(5))
        .service_fn(|number: u32| async move {
            yield_now().await;
            Ok::<_, BoxError>(number)
        });
    let calls: Vec<_> = (0..5).map(|number| tokio::spawn(service.clone().oneshot(number))).collect();
    for (number, call) in (0..5).zip(calls) {
        assert_eq!(call.await.unwrap().unwrap(), number);
    }
    assert_eq!(bulkhead.in_use(), 0);
}
