//! Tests of log files, alert rules and the dashboard.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "tests are documented by their names and fail by panicking"
)]

mod log;
mod monitoring;
mod protocols;
