//! The stores and the durable file.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod carried;
mod durable;
mod limits;
mod memory;
