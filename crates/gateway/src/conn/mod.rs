//! Client connections. The modules in the order in which a connection uses them:
//!
//! 1. `accept`: the accept loop of a worker on its socket of a `Listener`; a `ConnectionLimiter` limits connections, in total and per address
//! 2. `connection`: the task of one connection: TLS handshake, HTTP/1.1 or HTTP/2, `crate::service` for each request
//! 3. `io`: the byte streams below TLS and below HTTP; `RequestFraming` of `listener` finds the ends of heads and checks chunks
//! 4. `activity`: the state of the connection, updated by 2 and 3
//! 5. `response_streams`: response bodies; over HTTP/2, the read rate of each stream
//! 6. `idle_watchdog`: visits every connection of a worker periodically; `idle_policy` decides which to park or close,
//!    `send_queue` queries the kernel for unacknowledged bytes
//! 7. `unparsable`: responses to heads that hyper cannot parse
//! 8. `lingering_close`: closes without losing the last response
//!
//! Each request uses `io`, `activity`, `connection` (which polls `idle_watchdog` for actions) and `response_streams`; the
//! other modules work once per connection or tick.

mod accept;
mod activity;
mod connection;
mod idle_policy;
mod idle_watchdog;
mod io;
mod lingering_close;
mod response_streams;
mod send_queue;
mod unparsable;

pub(crate) use accept::accept;
pub(crate) use activity::{Activity, UnreadBody};
pub(crate) use connection::ConnectionGuard;
pub(crate) use idle_watchdog::Watchdog;
pub(crate) use io::poll_write_joined;
#[cfg(test)]
pub(crate) use io::{ClientSocket, TrackedIo};
