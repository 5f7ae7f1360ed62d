//! The reverse proxy that enforces a policy.
//!
//! Bytes enter at `conn::listener`, one socket and one thread for each worker. `service` reads, top to bottom, as the journey of
//! a request: what it asks for, who is banned, what it is held against, the one decision, its turn, the upstream.
//! Whatever goes wrong is a typed cause that rises to `error`, the only place that chooses a status code. What is in
//! force is swapped whole: no request sees half of a reload.

#![forbid(unsafe_code)]

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
mod upstream;
mod worker;

pub use crate::builder::GatewayBuilder;
pub use crate::conn::{
    CertificateResolver, ListenError, Listener, ServerCertificate, ServerCertificateError,
};
pub use crate::resource_limits::{MinRate, ResourceLimits};
pub use crate::server::{Gateway, PolicyError, StartError};
pub use crate::snapshot::SnapshotError;
pub use crate::upstream::{InvalidServerUrl, TlsError};
