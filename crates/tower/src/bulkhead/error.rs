//! Why a call was not made.

use thiserror::Error;

/// The bulkhead is full: its calls are in flight, and the queue is full or the wait was too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the bulkhead is full: {concurrent} calls are in flight")]
pub struct BulkheadFull {
    /// The most calls in flight.
    pub concurrent: usize,
}
