//! The reverse proxy that enforces a policy.
//!
//! Bytes enter at `conn::accept`. Each worker has one thread and one socket per listener. `service` handles a request
//! from top to bottom: validation, route, limits, delay, upstream. Every failure is a typed `ServeError`, and `error` is
//! the only module that chooses a status code. A reload swaps the whole `Snapshot`, so every request sees one policy.

#![forbid(unsafe_code)]

mod act;
mod admit;
mod attempt_end;
mod builder;
mod conn;
mod error;
mod executor;
mod forward;
mod http;
mod limit;
mod resource_limits;
mod server;
mod service;
mod snapshot;
mod status;
mod time_bounds;
mod upstream;
mod upstream_events;
mod upstream_metrics;
mod user_body;
mod worker;

pub use crate::builder::GatewayBuilder;
pub use crate::resource_limits::{MinRate, ResourceLimits};
pub use crate::server::{Gateway, PolicyError, StartError};
pub use crate::snapshot::SnapshotError;
pub use crate::status::{
    BreakerCommand, BreakerCommandError, BulkheadStatus, RouteStatus, ServerStatus, ShedStatus,
    UpstreamStatus,
};
pub use crate::upstream::{
    InvalidServerUrl, OutageStatus, ResilienceError, TlsError, UnreachableUpstream, UpstreamError,
};
