//! What a gateway promises its clients, one feature per file.

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
mod told;
mod traces;
mod upgrade;
mod upstream_limits;
