//! A timeout for each attempt.
//!
//! [`TimeoutLayer`] drops a call that takes too long and fails with [`AttemptTimeout`]. Inside of a retry layer it bounds one
//! attempt; the deadline bounds all of them together.

mod error;
mod future;
mod layer;
mod service;

pub use error::AttemptTimeout;
pub use future::TimeoutFuture;
pub use layer::TimeoutLayer;
pub use service::TimeoutService;
