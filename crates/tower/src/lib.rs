//! Middleware that keeps a service available when its dependencies fail.
//!
//! Each pattern is a module with a feature of the same name. A *handle* holds the shared state and gives out permits that
//! return what they hold when they are dropped; a tower `Layer` is a thin wrapper around it. The state machines themselves
//! are in [`tidegate_core`].

#![forbid(unsafe_code)]

#[cfg(feature = "breaker")]
pub mod breaker;
#[cfg(feature = "bulkhead")]
pub mod bulkhead;
mod clock;
#[cfg(feature = "deadline")]
pub mod deadline;
mod error;
#[cfg(feature = "fallback")]
pub mod fallback;
#[cfg(feature = "load_shed")]
pub mod load_shed;
#[cfg(feature = "policy")]
pub mod policy;
#[cfg(feature = "rate_limit")]
pub mod rate_limit;
mod response;
#[cfg(feature = "retry")]
pub mod retry;
#[cfg(feature = "thread_pool")]
pub mod thread_pool;
#[cfg(feature = "timeout")]
pub mod timeout;

pub use clock::system_clock;
pub use error::{BoxError, error_outcome, find_cause, is_rejection};
pub use response::into_response;
