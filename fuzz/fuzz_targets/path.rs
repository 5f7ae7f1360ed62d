//! Every path has exactly one normal form, whatever the client sends.

#![no_main]

#[path = "../laws/path.rs"]
mod path;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| path::assert_law(text));
