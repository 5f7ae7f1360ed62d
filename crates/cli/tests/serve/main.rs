//! The real binary on a real port.

#![cfg(target_os = "linux")]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod activation;
mod admin;
mod certificates;
mod descriptors;
mod floods;
mod frames;
mod frameworks;
mod log;
mod process;
mod prometheus;
mod reload;
mod stop;
mod streaming;
mod takeover;
mod trust;
mod welcome;
mod wire;
