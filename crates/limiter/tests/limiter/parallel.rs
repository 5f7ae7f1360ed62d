//! Many threads, one limiter.

use std::sync::Arc;

use crate::{Setup, active};

/// The futures of every entry point may move between threads; this does not compile otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_on_many_threads_admits_exactly_the_limit() {
    let setup = Arc::new(Setup::new(
        "rate_limits: { default: { requests: 100, window: 1h, algorithm: sliding_window_log } }",
    ));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let setup = Arc::clone(&setup);
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..50 {
                    admitted += usize::from(setup.outcome("/").await.starts_with("admitted"));
                    tokio::task::yield_now().await;
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    assert_eq!(admitted, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn activate_during_checks_never_admits_beyond_the_larger_limit() {
    let policy = |requests: u32| {
        format!("rate_limits: {{ default: {{ requests: {requests}, window: 1h, algorithm: fixed_window }} }}")
    };
    let setup = Arc::new(Setup::new(&policy(40)));
    let replacing = {
        let setup = Arc::clone(&setup);
        tokio::spawn(async move {
            for round in 0..50 {
                let next = active(&policy(if round % 2 == 0 { 60 } else { 40 }));
                let prepared = setup.limiter.prepare(next).unwrap();
                setup.limiter.activate(prepared);
                tokio::task::yield_now().await;
            }
        })
    };
    let mut admitted = 0;
    for _ in 0..200 {
        admitted += usize::from(setup.outcome("/").await.starts_with("admitted"));
        tokio::task::yield_now().await;
    }
    replacing.await.unwrap();
    assert!((40..=60).contains(&admitted), "{admitted}");
}
