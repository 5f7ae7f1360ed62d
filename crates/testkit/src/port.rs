//! Ports on the loopback interface.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Port 0 of the loopback interface: binding it takes any free port.
pub const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The ports of [`free_address`]. The system gives the ports above them to outgoing connections, at any moment.
const PORTS: std::ops::Range<u16> = 10_240..32_768;

/// A loopback address that was free a moment ago, and that no other call in this process returns soon.
///
/// For programs that need a port as an argument. Another process may take it before they do: then they fail to start.
pub fn free_address() -> SocketAddr {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // Processes of tests that run at the same time begin at different ports.
    let first = std::process::id().wrapping_mul(0x9E37_79B1);
    let is_free = |address: &SocketAddr| {
        // Closed on return; a listener that never accepted leaves nothing behind.
        TcpListener::bind(address).is_ok()
    };
    let mut addresses = std::iter::repeat_with(|| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let offset = first.wrapping_add(call) % u32::from(PORTS.end - PORTS.start);
        let port = PORTS.start + u16::try_from(offset).expect("an offset within the ports");
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    });
    let tries = usize::from(PORTS.end - PORTS.start);
    addresses.by_ref().take(tries).find(is_free).expect("a free port")
}
