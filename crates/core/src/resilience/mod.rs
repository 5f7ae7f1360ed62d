//! State machines that keep a service available when its dependencies fail.
//!
//! All of them are shared by reference between threads and never block. Time and randomness are arguments.

pub(crate) mod adaptive_limit;
pub(crate) mod backoff;
pub(crate) mod breaker;
pub(crate) mod call_outcome;
pub(crate) mod call_window;
pub(crate) mod ratio;
pub(crate) mod retry_budget;
mod slots;

#[cfg(all(loom, test))]
mod loom_tests;

/// The atomics of the state machines: from core, or from loom in its tests.
mod atomic {
    #[cfg(not(loom))]
    pub(super) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    #[cfg(loom)]
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}
