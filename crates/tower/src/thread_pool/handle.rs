//! The threads and their queue.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use super::error::{ThreadPoolFull, ThreadPoolPanic};
use super::future::ThreadPoolWork;

/// A pool of named threads for one kind of blocking work. Clones share it. The threads end when the last clone is dropped and
/// the queue is empty.
#[derive(Clone, Debug)]
pub struct ThreadPool {
    owner: Arc<PoolOwner>,
}

/// Closes the queue on drop.
#[derive(Debug)]
struct PoolOwner(Arc<WorkQueue>);

impl Drop for PoolOwner {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

pub(super) type QueuedWork = Box<dyn FnOnce() + Send>;

/// The work that waits for a thread.
pub(super) struct WorkQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    capacity: usize,
    running: AtomicUsize,
    panicked: AtomicU64,
}

#[derive(Default)]
struct QueueState {
    /// In order of arrival; the number identifies work that is cancelled.
    waiting: VecDeque<(u64, QueuedWork)>,
    next_number: u64,
    /// Threads without work.
    idle: usize,
    is_closed: bool,
}

impl WorkQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work and returns its number. Work for which a thread is idle does not count towards the queue.
    fn push(&self, work: QueuedWork) -> Result<u64, ThreadPoolFull> {
        let mut state = self.lock();
        if state.waiting.len() >= self.capacity.saturating_add(state.idle) {
            return Err(ThreadPoolFull { queue: self.capacity });
        }
        let number = state.next_number;
        state.next_number += 1;
        state.waiting.push_back((number, work));
        drop(state);
        self.changed.notify_one();
        Ok(number)
    }

    /// Removes work that has not started.
    pub(super) fn cancel(&self, number: u64) {
        let mut state = self.lock();
        let found = state.waiting.iter().position(|(waiting, _)| *waiting == number);
        let removed = found.and_then(|position| state.waiting.remove(position));
        drop(state);
        // What the work owns is dropped without the lock.
        drop(removed);
    }

    /// Counts a panic. Its payload may panic when it is dropped; then the second payload is leaked.
    fn count_panic(&self, payload: Box<dyn Any + Send>) {
        self.panicked.fetch_add(1, Ordering::Relaxed);
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(second);
        }
    }

    fn run_thread(&self) {
        let mut state = self.lock();
        loop {
            if let Some((_, work)) = state.waiting.pop_front() {
                state.idle -= 1;
                drop(state);
                self.running.fetch_add(1, Ordering::Relaxed);
                // The result of work that no caller waits for is dropped here, and may panic as well.
                if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
                    self.count_panic(payload);
                }
                self.running.fetch_sub(1, Ordering::Relaxed);
                state = self.lock();
                state.idle += 1;
            } else if state.is_closed {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl ThreadPool {
    /// Starts `threads` threads called `name-0`, `name-1` and so on. Up to `queue` calls wait for one of them.
    pub fn new(name: &str, threads: usize, queue: usize) -> io::Result<Self> {
        if threads == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a thread pool needs at least one thread",
            ));
        }
        let state = Mutex::new(QueueState { idle: threads, ..QueueState::default() });
        let shared = WorkQueue {
            state,
            changed: Condvar::new(),
            capacity: queue,
            running: 0.into(),
            panicked: 0.into(),
        };
        let pool = Self { owner: Arc::new(PoolOwner(Arc::new(shared))) };
        for index in 0..threads {
            let shared = Arc::clone(&pool.owner.0);
            thread::Builder::new().name(format!("{name}-{index}")).spawn(move || shared.run_thread())?;
        }
        Ok(pool)
    }

    /// Runs blocking work on a thread of the pool. Dropping the future cancels work that has not started; work that runs
    /// continues, and its result is dropped. A panic of the work becomes an error.
    pub fn run<T, F>(&self, work: F) -> ThreadPoolWork<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let queue = Arc::clone(&self.owner.0);
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
                queue.count_panic(payload);
                ThreadPoolPanic
            });
            // An error means that the caller has dropped its future.
            let _ = sender.send(result);
        };
        match self.owner.0.push(Box::new(work)) {
            Ok(number) => ThreadPoolWork::queued(Arc::clone(&self.owner.0), number, receiver),
            Err(full) => ThreadPoolWork::rejected(full),
        }
    }

    /// Calls that run.
    pub fn running(&self) -> usize {
        self.owner.0.running.load(Ordering::Relaxed)
    }

    /// Panics of the work, and of results and panic payloads when they were dropped. The threads go on.
    pub fn panicked(&self) -> u64 {
        self.owner.0.panicked.load(Ordering::Relaxed)
    }

    /// Calls that wait for a thread.
    pub fn queued(&self) -> usize {
        self.owner.0.lock().waiting.len()
    }
}

#[cfg(test)]
mod tests;
