//! How much of what was written to a socket its peer has not acknowledged, asked of the kernel.
//!
//! A full socket reports room only when a large part of its queue has left. A slow reader takes longer for that than it
//! is judged over, so the bytes that the socket accepted say too little of it; the length of the queue says the rest.

use std::net::SocketAddr;

/// The two ends of a connection: ours, then the client's.
pub(super) type AddressPair = (SocketAddr, SocketAddr);

/// Asks for the queues of this process's connections.
#[derive(Debug, Default)]
pub(super) struct SendQueues {
    #[cfg(target_os = "linux")]
    netlink: std::cell::OnceCell<Option<socket2::Socket>>,
}

#[cfg(not(target_os = "linux"))]
impl SendQueues {
    /// Bytes that the client has not acknowledged; `None` if the system does not say.
    pub(super) fn unacknowledged(&self, _addresses: AddressPair) -> Option<u32> {
        None
    }
}

#[cfg(target_os = "linux")]
impl SendQueues {
    /// Bytes that the client has not acknowledged; `None` if the system does not say.
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
    /// Where `idiag_wqueue` stands in a reply.
    const QUEUE: usize = HEADER + 60;

    /// A reply is there when a request has been sent, so nothing is waited for.
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
        // A sequence number and a port: one question at a time needs neither.
        put(&[0; 8]);
        let family = if local.is_ipv4() { 2 } else { 10 };
        put(&[family, IPPROTO_TCP, 0, 0]);
        // In whatever state it is.
        put(&u32::MAX.to_ne_bytes());
        put(&local.port().to_be_bytes());
        put(&peer.port().to_be_bytes());
        put(&octets(local));
        put(&octets(peer));
        // Any interface, and any cookie.
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

    /// The length of the send queue that a reply names.
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

    fn queue_follows_the_reader(address: &str) {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let mut client = TcpStream::connect(address).expect("a connection");
        let (mut server, peer) = listener.accept().expect("a connection");
        server.set_nonblocking(true).expect("a snapshot socket");
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
    fn send_queue_of_an_ipv4_connection_is_what_its_peer_has_not_acknowledged() {
        queue_follows_the_reader("127.0.0.1:0");
    }

    #[test]
    fn send_queue_of_an_ipv6_connection_is_what_its_peer_has_not_acknowledged() {
        if TcpListener::bind("[::1]:0").is_ok() {
            queue_follows_the_reader("[::1]:0");
        }
    }

    #[test]
    fn send_queue_of_an_unknown_connection_is_unknown() {
        let nowhere: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        assert_eq!(SendQueues::default().unacknowledged((nowhere, nowhere)), None);
    }
}
