//! A bulkhead: a bound on the calls in flight, so that one slow dependency cannot take all resources.
//!
//! [`Bulkhead`] is the handle. Calls beyond the bound wait in a queue, first come first served; the queue and the wait are
//! bounded too.

mod error;
mod handle;

pub use error::BulkheadFull;
pub use handle::{Bulkhead, BulkheadAcquire, BulkheadConfig, BulkheadPermit};
