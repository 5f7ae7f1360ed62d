//! Whatever an operator writes, it is a policy that can be used, or told what is wrong with it.

#![no_main]

#[path = "../laws/policy.rs"]
mod policy;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| policy::holds(bytes));
