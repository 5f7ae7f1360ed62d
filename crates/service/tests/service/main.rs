//! Tests of the decision service through its protocols.

mod fixture;
mod grpc;
mod http;
mod resp;
