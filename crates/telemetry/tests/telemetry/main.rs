//! Logs, metrics and the monitoring files that ship with the product.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod log;
mod monitoring;
