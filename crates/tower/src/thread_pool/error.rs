//! Why work has no result.

use thiserror::Error;

use crate::error::LayerError;

/// The threads are busy and the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the thread pool is full: {queue} calls are queued")]
pub struct ThreadPoolFull {
    /// The most calls in the queue.
    pub queue: usize,
}

/// The work panicked. Its thread continues with other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the work in the thread pool panicked")]
pub struct ThreadPoolPanic;

/// Why work has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ThreadPoolError {
    /// The work was not started.
    #[error("the work was not started")]
    Full(#[from] ThreadPoolFull),
    /// The work was started and panicked.
    #[error("the work has no result")]
    Panic(#[from] ThreadPoolPanic),
}

impl ThreadPoolError {
    /// The error of the cause.
    pub(super) fn into_cause(self) -> LayerError {
        match self {
            Self::Full(full) => LayerError::new(full),
            Self::Panic(panic) => LayerError::new(panic),
        }
    }
}
