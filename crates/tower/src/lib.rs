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
#[cfg(feature = "load_shed")]
pub mod load_shed;
#[cfg(feature = "retry")]
pub mod retry;

pub use clock::system_clock;
