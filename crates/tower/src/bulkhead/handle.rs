//! The bulkhead of one dependency, and the permits of its calls.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::{Sleep, sleep};

use super::error::BulkheadFull;

/// The bounds of a bulkhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkheadConfig {
    /// Calls in flight. 0 rejects all calls.
    pub concurrent: usize,
    /// Calls that may wait for one of them to end. 0: calls are rejected at once.
    pub queue: usize,
    /// How long a call may wait.
    pub wait: Duration,
}

impl BulkheadConfig {
    /// `concurrent` calls in flight; further calls are rejected at once.
    pub const fn new(concurrent: usize) -> Self {
        Self { concurrent, queue: 0, wait: Duration::ZERO }
    }

    /// Lets up to `queue` calls wait for at most `wait`.
    pub fn queue(self, queue: usize, wait: impl Into<Duration>) -> Self {
        Self { queue, wait: wait.into(), ..self }
    }
}

/// The bulkhead of one dependency. Clones share the permits.
#[derive(Clone, Debug)]
pub struct Bulkhead {
    shared: Arc<BulkheadState>,
}

#[derive(Debug)]
struct BulkheadState {
    /// Gives out permits in the order in which they were requested.
    semaphore: Arc<Semaphore>,
    config: BulkheadConfig,
    waiting: AtomicUsize,
    rejected: AtomicU64,
}

impl BulkheadState {
    fn reject(&self) -> BulkheadFull {
        self.rejected.fetch_add(1, Ordering::Relaxed);
        BulkheadFull { concurrent: self.config.concurrent }
    }
}

impl Bulkhead {
    /// A bulkhead with all permits free.
    pub fn new(config: BulkheadConfig) -> Self {
        let concurrent = config.concurrent.min(Semaphore::MAX_PERMITS);
        let config = BulkheadConfig { concurrent, ..config };
        let semaphore = Arc::new(Semaphore::new(concurrent));
        let (waiting, rejected) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { shared: Arc::new(BulkheadState { semaphore, config, waiting, rejected }) }
    }

    /// Takes a permit that is free. A call that waits is served first.
    #[inline]
    pub fn try_acquire(&self) -> Result<BulkheadPermit, BulkheadFull> {
        self.try_take().ok_or_else(|| self.shared.reject())
    }

    /// Takes a permit, or waits for one as far as the queue allows it. Dropping the future gives up the place in the queue. A call
    /// that would have to wait outside of a tokio runtime is rejected, because there is no timer to end its wait.
    #[inline]
    pub fn acquire(&self) -> BulkheadAcquire {
        BulkheadAcquire { state: self.start_acquire() }
    }

    fn start_acquire(&self) -> AcquireState {
        if let Some(permit) = self.try_take() {
            return AcquireState::Ready(Ok(permit));
        }
        match QueuePlace::try_take(&self.shared) {
            Some(place) => AcquireState::Waiting(Waiter {
                permit: Box::pin(Arc::clone(&self.shared.semaphore).acquire_owned()),
                timeout: None,
                place,
            }),
            None => AcquireState::Ready(Err(self.shared.reject())),
        }
    }

    fn try_take(&self) -> Option<BulkheadPermit> {
        match Arc::clone(&self.shared.semaphore).try_acquire_owned() {
            Ok(permit) => Some(BulkheadPermit { _permit: permit }),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => None,
        }
    }

    /// The bounds.
    pub fn config(&self) -> BulkheadConfig {
        self.shared.config
    }

    /// Calls in flight.
    pub fn in_use(&self) -> usize {
        self.shared.config.concurrent.saturating_sub(self.shared.semaphore.available_permits())
    }

    /// Calls that wait.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// Calls that were rejected so far.
    pub fn rejected(&self) -> u64 {
        self.shared.rejected.load(Ordering::Relaxed)
    }
}

/// A call in flight. Dropping it lets the next call in.
#[derive(Debug)]
#[must_use = "a dropped permit is released"]
pub struct BulkheadPermit {
    _permit: OwnedSemaphorePermit,
}

/// A place in the queue, given up on drop.
#[derive(Debug)]
struct QueuePlace(Arc<BulkheadState>);

impl QueuePlace {
    fn try_take(state: &Arc<BulkheadState>) -> Option<Self> {
        let queue = state.config.queue;
        let add = |waiting| (waiting < queue).then_some(waiting + 1);
        state.waiting.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).ok()?;
        Some(Self(Arc::clone(state)))
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The future of [`Bulkhead::acquire`].
#[must_use = "futures do nothing unless polled"]
pub struct BulkheadAcquire {
    state: AcquireState,
}

enum AcquireState {
    Ready(Result<BulkheadPermit, BulkheadFull>),
    Waiting(Waiter),
    Done,
}

/// Only calls that wait allocate.
struct Waiter {
    permit: Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>,
    /// Set when the call has to wait: a timer needs a runtime, which there may not be before.
    timeout: Option<Pin<Box<Sleep>>>,
    place: QueuePlace,
}

impl Waiter {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<BulkheadPermit, BulkheadFull>> {
        if let Poll::Ready(permit) = self.permit.as_mut().poll(cx) {
            return Poll::Ready(match permit {
                Ok(permit) => Ok(BulkheadPermit { _permit: permit }),
                Err(AcquireError { .. }) => Err(self.place.0.reject()),
            });
        }
        if self.timeout.is_none() {
            if Handle::try_current().is_err() {
                return Poll::Ready(Err(self.place.0.reject()));
            }
            self.timeout = Some(Box::pin(sleep(self.place.0.config.wait)));
        }
        let Some(timeout) = &mut self.timeout else { return Poll::Pending };
        timeout.as_mut().poll(cx).map(|()| Err(self.place.0.reject()))
    }
}

impl BulkheadAcquire {
    /// The result, if it is known without waiting; otherwise the future.
    pub(super) fn into_ready(self) -> Result<Result<BulkheadPermit, BulkheadFull>, Self> {
        match self.state {
            AcquireState::Ready(result) => Ok(result),
            state => Err(Self { state }),
        }
    }
}

impl Future for BulkheadAcquire {
    type Output = Result<BulkheadPermit, BulkheadFull>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match std::mem::replace(&mut self.state, AcquireState::Done) {
            AcquireState::Ready(result) => result,
            AcquireState::Waiting(mut waiter) => match waiter.poll(cx) {
                Poll::Ready(result) => result,
                Poll::Pending => {
                    self.state = AcquireState::Waiting(waiter);
                    return Poll::Pending;
                }
            },
            // Polled again after completion: never ready, as with a fused future.
            AcquireState::Done => return Poll::Pending,
        };
        Poll::Ready(result)
    }
}

impl fmt::Debug for BulkheadAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            AcquireState::Ready(_) => "ready",
            AcquireState::Waiting(_) => "waiting",
            AcquireState::Done => "done",
        };
        f.debug_struct("BulkheadAcquire").field("state", &state).finish()
    }
}

#[cfg(test)]
mod tests;
