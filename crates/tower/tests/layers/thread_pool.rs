use tidegate_tower::thread_pool::{ThreadPool, ThreadPoolLayer, ThreadPoolPanic};
use tower::{ServiceBuilder, ServiceExt};

use crate::support::{Broken, is};

#[tokio::test]
async fn thread_pool_layer_makes_a_service_of_a_blocking_function() {
    let pool = ThreadPool::new("hash", 1, 8).unwrap();
    let hash = |number: u64| match number {
        0 => Err(Broken),
        1 => unreachable!("expected by this test"),
        _ => Ok((number, std::thread::current().name().map(str::to_owned))),
    };
    let service = ServiceBuilder::new().layer(ThreadPoolLayer::new(pool)).service(hash);
    assert_eq!(service.clone().oneshot(7).await.unwrap(), (7, Some("hash-0".to_owned())));
    assert!(is::<Broken>(&service.clone().oneshot(0).await.unwrap_err()));
    assert!(is::<ThreadPoolPanic>(&service.clone().oneshot(1).await.unwrap_err()));
    assert_eq!(service.oneshot(8).await.unwrap().0, 8, "the thread survives a panic");
}
