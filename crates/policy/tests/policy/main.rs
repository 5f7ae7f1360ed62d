//! Compiles, explains and matches policies.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod broken;
mod corpus;
mod documentation;
mod explain;
mod expressions;
mod language;
mod no_allocation;
mod policies;
mod resilience;
mod service;
mod store;
mod warnings;
