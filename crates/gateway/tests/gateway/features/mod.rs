//! The features of the gateway, one per file.

mod actions;
mod admission;
mod balance;
mod body_users;
mod cached;
mod concurrency_limits;
mod costs;
mod delayed_requests;
mod error_bodies;
mod grpc;
mod grpc_errors;
mod header_values;
mod messages;
mod metrics;
mod multiple_limits;
mod penalties;
mod rate_limit_headers;
mod request_log;
mod retry_after;
mod shadow;
mod shutdown;
mod traces;
mod upgrade;
mod upstream_limits;
mod waiting;
