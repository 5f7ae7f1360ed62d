//! A circuit breaker: calls to a service that fails are rejected at once, until a probe shows that it works again.
//!
//! [`CircuitBreaker`] is the handle: one for each service that can fail on its own, shared by all of its callers.
//! [`BreakerLayer`] rejects calls with [`BreakerOpen`] and records how the others end. Dropping the future of a call cancels
//! the call: it counts as neither success nor failure, and a probe gives its slot back.

mod classify;
mod error;
mod future;
mod handle;
mod layer;
mod service;

pub use classify::{ByError, ByStatus, Classify};
pub use error::BreakerOpen;
pub use future::BreakerFuture;
pub use handle::{BreakerPermit, CircuitBreaker};
pub use layer::BreakerLayer;
pub use service::BreakerService;
