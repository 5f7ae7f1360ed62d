//! Logs and what monitors read.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod log;
mod monitoring;
