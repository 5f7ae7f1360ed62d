//! The laws of the layers, alone and as a stack.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

mod backoff;
mod breaker;
mod bulkhead;
mod cancellation;
mod connect_info;
mod deadline;
mod fallback;
mod grpc;
mod load_shed;
mod plain_hyper;
mod policy;
mod rate_limit;
mod readiness;
mod refund;
mod response;
mod retry;
mod support;
mod thread_pool;
mod timeout;
