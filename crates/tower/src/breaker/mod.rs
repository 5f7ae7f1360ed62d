//! A circuit breaker: calls to a service that fails are rejected at once, until a probe shows that it works again.
//!
//! [`CircuitBreaker`] is the handle: one for each service that can fail on its own, shared by all of its callers.

mod error;
mod handle;

pub use error::BreakerOpen;
pub use handle::{BreakerPermit, CircuitBreaker};
