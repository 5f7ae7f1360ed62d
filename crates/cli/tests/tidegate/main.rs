//! The real binary.

#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod check;
mod contrib;
mod distributed;
mod documentation;
mod explain;
mod integrations;
mod program;
mod serve;
