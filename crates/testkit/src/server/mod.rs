//! Servers in this process.

mod accept;
mod echo;
mod fault;
mod fault_proxy;
mod recording;
mod service;

pub use accept::{AcceptLoop, thread_per_connection};
pub use echo::echo;
pub use fault::{ResettingServer, breaks_off, silent_http1, silent_http2};
pub use fault_proxy::{FaultProxy, ProxyMode};
pub use recording::{Counts, RecordingServer, Reply, ok};
pub use service::{AnyBody, HttpServer, full, tls_server};
