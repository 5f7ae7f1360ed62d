//! The services behind: which server takes a request, and the connections to it.

mod abandon;
mod balance;
mod connect;
mod framing;
pub(crate) mod health;
mod http1_fast;
mod lease;
mod pool;
pub(crate) mod response_timeout;
mod server;
mod stream;

pub(crate) use balance::Stand;
pub(crate) use connect::Connector;
pub use connect::TlsError;
pub(crate) use http1_fast::PlainBody;
pub(crate) use lease::Lease;
pub(crate) use pool::{Pools, SendError};
pub use server::BadServer;
pub(crate) use server::{Server, Upstream};
