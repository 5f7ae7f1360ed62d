//! The services behind: which server takes a request, and the connections to it.

mod balance;
mod connect;
pub(crate) mod health;
mod line;
mod pool;
mod server;

pub(crate) use balance::Stand;
pub(crate) use connect::Connector;
pub use connect::TlsError;
pub(crate) use line::PlainBody;
pub(crate) use pool::{Lease, Pools, SendError};
pub use server::BadServer;
pub(crate) use server::{Server, Upstream};
