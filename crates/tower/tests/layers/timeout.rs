use std::time::Duration;

use tidegate_tower::BoxError;
use tidegate_tower::timeout::{AttemptTimeout, TimeoutLayer};
use tokio::time::sleep;
use tower::{ServiceBuilder, ServiceExt};

#[tokio::test(start_paused = true)]
async fn timeout_slow_call_fails_and_fast_call_passes() {
    let after = Duration::from_millis(100);
    let service =
        ServiceBuilder::new().layer(TimeoutLayer::new(after)).service_fn(|millis: u64| async move {
            sleep(Duration::from_millis(millis)).await;
            Ok::<_, BoxError>(millis)
        });
    assert_eq!(service.clone().oneshot(99).await.unwrap(), 99);
    let error = service.oneshot(101).await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&AttemptTimeout { after }));
}
