//! A bulkhead: a bound on the calls in flight, so that one slow dependency cannot take all resources.
//!
//! [`Bulkhead`] is the handle. Calls beyond the bound wait in a queue, first come first served; the queue and the wait are
//! bounded too. [`BulkheadLayer`] holds a permit while the future of a call runs, and rejects calls with [`BulkheadFull`].
//! The body of an HTTP response is sent after that; to bound it too, keep a [`BulkheadPermit`] with the body.

mod error;
mod future;
mod handle;
mod layer;
mod service;

pub use error::BulkheadFull;
pub use future::BulkheadFuture;
pub use handle::{Bulkhead, BulkheadAcquire, BulkheadConfig, BulkheadPermit};
pub use layer::BulkheadLayer;
pub use service::BulkheadService;
