//! Ports on the loopback interface.

use std::net::{SocketAddr, TcpListener};

/// Port 0 of the loopback interface: binding it takes any free port.
pub const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A loopback address that was free a moment ago.
///
/// For programs that need a port as an argument. Another process may take it before they do: then they fail to start.
pub fn free_address() -> SocketAddr {
    // Closed on return; a listener that never accepted leaves nothing behind.
    TcpListener::bind(ANY).and_then(|listener| listener.local_addr()).expect("a free port")
}
