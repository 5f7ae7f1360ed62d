//! What a gateway promises its clients, over real sockets.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod admission;
mod announced;
mod balance;
mod concurrent;
mod costs;
mod counted;
mod grpc;
mod grpc_errors;
mod hold;
mod layers;
mod logged;
mod messages;
mod penalties;
mod retry_after;
mod shadow;
mod stop;
mod support;
mod told;
mod traces;
mod upgrade;
mod upstream_limits;
