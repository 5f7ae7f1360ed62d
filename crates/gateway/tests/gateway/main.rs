//! The gateway over real sockets.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod edge;
mod features;
mod fixture;
mod resilience;
