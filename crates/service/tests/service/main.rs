//! Tests of the decision service through its protocols.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod actions;
mod fixture;
mod grpc;
mod http;
mod one_reading;
mod resp;
mod traces;
