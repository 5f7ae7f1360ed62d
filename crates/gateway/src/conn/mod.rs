//! Client connections. The modules in the order in which a connection uses them:
//!
//! 1. `listener`: one listening socket for each worker, and TLS with the certificate of `certificate`
//! 2. `accept`: the accept loop; `connection_limit` limits connections, in total and per address
//! 3. `connection`: the task of one connection: TLS handshake, HTTP/1.1 or HTTP/2, `crate::service` for each request
//! 4. `io`: the byte streams below TLS and below HTTP
//! 5. `activity`: the state of the connection, updated by 3 and 4
//! 6. `response_streams`: response bodies; over HTTP/2, the read rate of each stream
//! 7. `idle_watchdog`: visits every connection of a worker periodically; `idle_policy` decides which to park or close,
//!    `send_queue` queries the kernel for unacknowledged bytes
//! 8. `unparsable`: responses to heads that hyper cannot parse
//! 9. `lingering_close`: closes without losing the last response
//!
//! Each request uses `io`, `activity`, `connection` (which polls `idle_watchdog` for actions) and `response_streams`; the
//! other modules work once per connection or tick.

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
