//! Listening sockets, one for each worker thread, the certificates that they present, and limits on connections.
//!
//! The gateway and the decision service accept connections through a [`Listener`]. It is bound here, or adopted from a
//! service manager or from a process that is being replaced.

#![forbid(unsafe_code)]

mod certificate;
mod client_auth;
mod connection_limit;
mod listener;

pub use certificate::{CertificateResolver, ServerCertificate, ServerCertificateError};
pub use client_auth::{ClientAuthority, ClientAuthorityError};
pub use connection_limit::{ConnectionLimiter, ConnectionPermit};
pub use listener::{ListenError, Listener};
