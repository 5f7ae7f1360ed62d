use std::time::Duration;

use tokio::time::{advance, timeout};

use super::*;

fn bulkhead(concurrent: usize, queue: usize) -> Bulkhead {
    Bulkhead::new(BulkheadConfig::new(concurrent).queue(queue, Duration::from_millis(500)))
}

/// Polls a future once.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| match Pin::new(&mut *future).poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn bulkhead_with_permits_in_use_queues_and_then_rejects() {
    let bulkhead = bulkhead(2, 1);
    let first = bulkhead.acquire().await.unwrap();
    let _second = bulkhead.try_acquire().unwrap();
    assert_eq!(bulkhead.try_acquire().unwrap_err(), BulkheadFull { concurrent: 2 });
    let mut waiting = bulkhead.acquire();
    assert!(poll_once(&mut waiting).await.is_none());
    assert_eq!((bulkhead.in_use(), bulkhead.waiting()), (2, 1));
    assert!(bulkhead.acquire().await.is_err(), "the queue is full");
    drop(first);
    let _third = waiting.await.unwrap();
    assert_eq!((bulkhead.in_use(), bulkhead.waiting(), bulkhead.rejected()), (2, 0, 2));
}

#[tokio::test(start_paused = true)]
async fn bulkhead_wait_that_is_too_long_is_rejected() {
    let bulkhead = bulkhead(1, 5);
    let _permit = bulkhead.acquire().await.unwrap();
    let mut waiting = bulkhead.acquire();
    assert!(poll_once(&mut waiting).await.is_none());
    advance(Duration::from_millis(499)).await;
    assert!(poll_once(&mut waiting).await.is_none());
    advance(Duration::from_millis(2)).await;
    assert!(poll_once(&mut waiting).await.unwrap().is_err());
    assert_eq!(bulkhead.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn bulkhead_waiters_are_served_in_order_and_before_newcomers() {
    let bulkhead = bulkhead(1, 2);
    let permit = bulkhead.acquire().await.unwrap();
    let (mut first, mut second) = (bulkhead.acquire(), bulkhead.acquire());
    assert!(poll_once(&mut first).await.is_none());
    assert!(poll_once(&mut second).await.is_none());
    drop(permit);
    assert!(bulkhead.try_acquire().is_err(), "the permit belongs to the first waiter");
    assert!(poll_once(&mut second).await.is_none());
    let permit = poll_once(&mut first).await.unwrap().unwrap();
    drop(permit);
    assert!(timeout(Duration::from_millis(1), second).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn bulkhead_waiter_dropped_with_a_permit_assigned_passes_it_on() {
    let bulkhead = bulkhead(1, 2);
    let permit = bulkhead.acquire().await.unwrap();
    let mut waiting = bulkhead.acquire();
    assert!(poll_once(&mut waiting).await.is_none());
    drop(permit);
    drop(waiting);
    assert_eq!((bulkhead.in_use(), bulkhead.waiting()), (0, 0));
    assert!(bulkhead.try_acquire().is_ok());
}

#[test]
fn bulkhead_wait_outside_of_a_runtime_is_rejected() {
    let bulkhead = bulkhead(1, 5);
    let _permit = bulkhead.try_acquire().unwrap();
    let mut waiting = bulkhead.acquire();
    let result = Pin::new(&mut waiting).poll(&mut Context::from_waker(std::task::Waker::noop()));
    assert!(matches!(result, Poll::Ready(Err(BulkheadFull { concurrent: 1 }))));
    drop(waiting);
    assert_eq!((bulkhead.in_use(), bulkhead.waiting()), (1, 0));
}
