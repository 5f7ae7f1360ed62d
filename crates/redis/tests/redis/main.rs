//! The store against real servers.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod central;
mod lease;
mod link;
mod store;
