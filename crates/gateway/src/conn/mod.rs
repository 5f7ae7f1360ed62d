//! Connections of clients. The modules in the order in which a connection meets them:
//!
//! 1. `listener`: one listening socket for each worker, and TLS with the certificate of `certificate`
//! 2. `accept`: takes connections; `connection_limit` limits how many, in all and of one address
//! 3. `connection`: the task of one connection: TLS handshake, HTTP/1.1 or HTTP/2, `crate::service` for each request
//! 4. `io`: the connection's bytes, below TLS and below HTTP
//! 5. `activity`: the state of the connection, which 3 and 4 keep up to date
//! 6. `response_streams`: response bodies; over HTTP/2 each stream's rate by itself
//! 7. `idle_watchdog`: visits every connection of a worker now and then; `idle_policy` decides which to park or close,
//!    `send_queue` asks the kernel how much a slow reader has left unread
//! 8. `unparsable`: responses to heads that hyper cannot parse
//! 9. `lingering_close`: closes without losing the last response
//!
//! A request passes `io`, `activity`, `connection` (which asks `idle_watchdog` for what the connection is to do) and
//! `response_streams`; the rest is for connections.

mod accept;
mod activity;
mod certificate;
mod connection;
mod connection_limit;
mod idle_policy;
mod idle_watchdog;
mod io;
mod lingering_close;
mod listener;
mod response_streams;
mod send_queue;
mod unparsable;

pub(crate) use accept::Acceptor;
pub(crate) use activity::{Activity, UnreadBody};
pub use certificate::{CertificateResolver, ServerCertificate, ServerCertificateError};
pub(crate) use connection_limit::{ConnectionGuard, ConnectionLimiter};
pub(crate) use idle_watchdog::Watchdog;
pub(crate) use io::poll_write_joined;
#[cfg(test)]
pub(crate) use io::{ClientSocket, TrackedIo};
pub use listener::{ListenError, Listener};
