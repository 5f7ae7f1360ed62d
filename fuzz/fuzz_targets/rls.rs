//! Every message of Envoy's rate limit service and every configuration is answered or rejected.

#![no_main]

#[path = "../laws/rls.rs"]
mod rls;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rls::assert_law(bytes));
