//! Queries the kernel for the bytes written to a socket that the peer has not acknowledged.
//!
//! A full socket becomes writable only after a large part of its queue was sent. For a slow reader that takes longer than
//! the measured window, so the bytes accepted by the socket are not precise enough; the length of the queue is needed too.

use std::net::SocketAddr;

/// The two addresses of a connection: ours, then the client's.
pub(super) type AddressPair = (SocketAddr, SocketAddr);

/// Queries the send queues of connections.
#[derive(Debug, Default)]
pub(super) struct SendQueues {
    #[cfg(target_os = "linux")]
    netlink: std::cell::OnceCell<Option<socket2::Socket>>,
}

#[cfg(not(target_os = "linux"))]
impl SendQueues {
    /// Bytes that the client has not acknowledged; `None` if the kernel does not report it.
    pub(super) fn unacknowledged(&self, _addresses: AddressPair) -> Option<u32> {
        None
    }
}

#[cfg(target_os = "linux")]
impl SendQueues {
    /// Bytes that the client has not acknowledged; `None` if the kernel does not report it.
    pub(super) fn unacknowledged(&self, addresses: AddressPair) -> Option<u32> {
        use std::io::{Read, Write};

        let mut netlink = self.netlink.get_or_init(sock_diag::open).as_ref()?;
        netlink.write_all(&sock_diag::request(addresses)).ok()?;
        let mut reply = [0; 512];
        let length = netlink.read(&mut reply).ok()?;
        sock_diag::queue(reply.get(..length)?)
    }
}

/// The messages of `sock_diag(7)`.
#[cfg(target_os = "linux")]
mod sock_diag {
    use std::net::{IpAddr, SocketAddr};

    use socket2::{Domain, Protocol, Socket, Type};

    use super::AddressPair;

    const AF_NETLINK: i32 = 16;
    const NETLINK_SOCK_DIAG: i32 = 4;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const IPPROTO_TCP: u8 = 6;
    /// The length of `nlmsghdr`.
    const HEADER: usize = 16;
    /// The length of `inet_diag_req_v2`.
    const REQUEST: usize = 56;
    /// The offset of `idiag_wqueue` in a reply.
    const QUEUE: usize = HEADER + 60;

    /// Opens a non-blocking socket: the kernel has replied when `send` returns.
    pub(super) fn open() -> Option<Socket> {
        let protocol = Some(Protocol::from(NETLINK_SOCK_DIAG));
        let socket = Socket::new(Domain::from(AF_NETLINK), Type::RAW, protocol).ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(socket)
    }

    pub(super) fn request((local, peer): AddressPair) -> [u8; HEADER + REQUEST] {
        let mut bytes = [0; HEADER + REQUEST];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        #[expect(clippy::cast_possible_truncation, reason = "72 bytes")]
        put(&((HEADER + REQUEST) as u32).to_ne_bytes());
        put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        put(&NLM_F_REQUEST.to_ne_bytes());
        // Sequence number and port id: one request at a time needs neither.
        put(&[0; 8]);
        let family = if local.is_ipv4() { 2 } else { 10 };
        put(&[family, IPPROTO_TCP, 0, 0]);
        // Any TCP state.
        put(&u32::MAX.to_ne_bytes());
        put(&local.port().to_be_bytes());
        put(&peer.port().to_be_bytes());
        put(&octets(local));
        put(&octets(peer));
        // Any interface, any cookie.
        put(&0_u32.to_ne_bytes());
        put(&[0xff; 8]);
        bytes
    }

    fn octets(address: SocketAddr) -> [u8; 16] {
        match address.ip() {
            IpAddr::V4(address) => {
                let mut octets = [0; 16];
                octets[..4].copy_from_slice(&address.octets());
                octets
            }
            IpAddr::V6(address) => address.octets(),
        }
    }

    /// The length of the send queue in a reply.
    pub(super) fn queue(reply: &[u8]) -> Option<u32> {
        let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
        let queue = reply.get(QUEUE..QUEUE + 4)?.try_into().ok()?;
        (kind == SOCK_DIAG_BY_FAMILY).then(|| u32::from_ne_bytes(queue))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn assert_queue_follows_reader(address: &str) {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let mut client = TcpStream::connect(address).expect("a connection");
        let (mut server, peer) = listener.accept().expect("a connection");
        server.set_nonblocking(true).expect("a non-blocking socket");
        let addresses = (server.local_addr().expect("an address"), peer);
        let kernel = SendQueues::default();
        assert_eq!(kernel.unacknowledged(addresses), Some(0));
        let mut written = 0;
        loop {
            match server.write(&[0; 16 << 10]) {
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let left =
            kernel.unacknowledged(addresses).and_then(|bytes| usize::try_from(bytes).ok()).expect("a queue");
        assert!((1..=written).contains(&left), "{left} of {written}");
        client.read_exact(&mut vec![0; written]).expect("all of it");
        while kernel.unacknowledged(addresses) != Some(0) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn send_queue_of_ipv4_connection_is_the_unacknowledged_bytes() {
        assert_queue_follows_reader("127.0.0.1:0");
    }

    #[test]
    fn send_queue_of_ipv6_connection_is_the_unacknowledged_bytes() {
        if TcpListener::bind("[::1]:0").is_ok() {
            assert_queue_follows_reader("[::1]:0");
        }
    }

    #[test]
    fn send_queue_of_unknown_connection_is_none() {
        let nowhere: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        assert_eq!(SendQueues::default().unacknowledged((nowhere, nowhere)), None);
    }
}
