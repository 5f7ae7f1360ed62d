//! The services behind: which server takes a request, and the connections to it.

mod abandon;
mod balance;
mod connect;
mod framing;
pub(crate) mod health;
mod lease;
mod line;
mod pool;
mod server;
mod stream;

pub(crate) use balance::Stand;
pub(crate) use connect::Connector;
pub use connect::TlsError;
pub(crate) use lease::Lease;
pub(crate) use line::PlainBody;
pub(crate) use pool::{Pools, SendError};
pub use server::BadServer;
pub(crate) use server::{Server, Upstream};
