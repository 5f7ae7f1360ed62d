//! Whatever a client writes, a path has one spelling afterwards.

#![no_main]

#[path = "../laws/path.rs"]
mod path;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| path::holds(text));
