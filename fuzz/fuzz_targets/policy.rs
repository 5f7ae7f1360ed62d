//! Every input is a usable policy or is rejected with problems.

#![no_main]

#[path = "../laws/policy.rs"]
mod policy;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| policy::assert_law(bytes));
