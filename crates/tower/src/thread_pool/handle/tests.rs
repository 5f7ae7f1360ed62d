use std::sync::mpsc;
use std::sync::{Condvar, Mutex};

use super::super::error::ThreadPoolError;
use super::*;

/// Blocks threads until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let mut is_open = self.0.0.lock().unwrap();
        while !*is_open {
            is_open = self.0.1.wait(is_open).unwrap();
        }
    }
}

/// Occupies one thread of the pool until the gate opens; returns when the thread has started.
fn block(pool: &ThreadPool, gate: &Gate) -> ThreadPoolWork<()> {
    let (started, has_started) = mpsc::channel();
    let gate = gate.clone();
    let work = pool.run(move || {
        started.send(()).unwrap();
        gate.wait();
    });
    has_started.recv().unwrap();
    work
}

#[tokio::test]
async fn thread_pool_work_runs_on_a_named_thread() {
    let pool = ThreadPool::new("report", 2, 10).unwrap();
    let name = pool.run(|| thread::current().name().map(str::to_owned)).await.unwrap();
    assert!(name.unwrap().starts_with("report-"));
}

#[tokio::test]
async fn thread_pool_with_busy_threads_and_a_full_queue_rejects() {
    let pool = ThreadPool::new("full", 1, 1).unwrap();
    let gate = Gate::default();
    let first = block(&pool, &gate);
    let second = pool.run(|| 2);
    assert_eq!((pool.running(), pool.queued()), (1, 1));
    assert_eq!(pool.run(|| 3).await, Err(ThreadPoolError::Full(ThreadPoolFull { queue: 1 })));
    gate.open();
    assert_eq!((first.await, second.await), (Ok(()), Ok(2)));
}

#[tokio::test]
async fn thread_pool_work_cancelled_before_it_starts_is_not_run() {
    let pool = ThreadPool::new("cancel", 1, 1).unwrap();
    let gate = Gate::default();
    let first = block(&pool, &gate);
    let (ran, has_run) = mpsc::channel();
    for _ in 0..100 {
        let ran = ran.clone();
        drop(pool.run(move || ran.send(()).unwrap()));
    }
    drop(ran);
    assert_eq!(pool.queued(), 0);
    gate.open();
    first.await.unwrap();
    assert!(has_run.recv().is_err(), "every sender was dropped unused");
}

#[tokio::test]
async fn thread_pool_work_that_panics_is_an_error_and_the_thread_continues() {
    let pool = ThreadPool::new("panic", 1, 1).unwrap();
    let result = pool.run(|| assert!(thread::current().name().is_none(), "expected by this test")).await;
    assert_eq!(result, Err(ThreadPoolError::Panic(ThreadPoolPanic)));
    assert_eq!(pool.run(|| 7).await, Ok(7));
}

#[tokio::test]
async fn thread_pool_that_is_dropped_finishes_its_queue() {
    let pool = ThreadPool::new("drop", 1, 4).unwrap();
    let gate = Gate::default();
    let first = block(&pool, &gate);
    let second = pool.run(|| 2);
    drop(pool);
    gate.open();
    assert_eq!((first.await, second.await), (Ok(()), Ok(2)));
}

/// Panics when it is dropped.
struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        if !thread::panicking() {
            std::panic::panic_any("expected by this test");
        }
    }
}

#[tokio::test]
async fn thread_pool_thread_survives_results_and_payloads_that_panic_when_dropped() {
    let pool = ThreadPool::new("drop-panic", 1, 1).unwrap();
    let (started, has_started) = mpsc::channel();
    let gate = Gate::default();
    let work = {
        let gate = gate.clone();
        pool.run(move || {
            started.send(()).unwrap();
            gate.wait();
            PanicOnDrop
        })
    };
    has_started.recv().unwrap();
    // The result has no receiver, so the thread drops it.
    drop(work);
    gate.open();
    let panicked = pool.run(|| std::panic::panic_any(PanicOnDrop)).await;
    assert_eq!(panicked, Err(ThreadPoolError::Panic(ThreadPoolPanic)));
    assert_eq!(pool.run(|| 7).await, Ok(7));
    assert_eq!((pool.panicked(), pool.queued()), (2, 0));
}
