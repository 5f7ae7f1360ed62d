//! A connection has the same commands however its bytes are split.

#![no_main]

#[path = "../laws/resp.rs"]
mod resp;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| resp::assert_law(bytes));
