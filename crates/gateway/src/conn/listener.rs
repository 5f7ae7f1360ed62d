//! Sockets that clients connect to: one for each worker, so that no worker waits for another.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;

use super::certificate::{CertificateResolver, ServerCertificate, ServerCertificateError};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 4_096;

/// How much of a response the system keeps unsent for a slow client; by default it is megabytes.
const UNSENT: u32 = 128 << 10;

/// A place to listen at, and what is spoken there.
#[derive(Clone)]
pub struct Listener {
    address: SocketAddr,
    /// One for each worker.
    pub(crate) sockets: Vec<Arc<TcpListener>>,
    pub(crate) tls: Option<TlsAcceptor>,
    certificate: Option<Arc<CertificateResolver>>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cores = self.sockets.len();
        write!(f, "Listener({}, {cores} cores, tls: {})", self.address, self.tls.is_some())
    }
}

/// Why nobody can connect.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The address is not one.
    #[error("`{address}` is not an address; write it as 127.0.0.1:8080 or localhost:8080")]
    NoAddress {
        /// What was given.
        address: String,
    },
    /// The system refuses.
    #[error("cannot listen on {address}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error("cannot use the certificate")]
    Certificate(#[from] ServerCertificateError),
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
}

impl Listener {
    /// Listens at `address` with a socket for each of `cores`.
    pub fn bind(address: &str, cores: usize) -> Result<Self, ListenError> {
        let no_address = || ListenError::NoAddress { address: address.to_owned() };
        let mut found = address.to_socket_addrs().map_err(|_| no_address())?;
        let wanted = found.next().ok_or_else(no_address)?;
        // SharedState ports would let a second gateway in unnoticed; alone, the system says that it is taken.
        drop(bind_alone(wanted).map_err(|source| ListenError::Bind { address: wanted, source })?);
        let first = bind(wanted).map_err(|source| ListenError::Bind { address: wanted, source })?;
        // The system may have chosen the port.
        let address = first.local_addr().map_err(|source| ListenError::Bind { address: wanted, source })?;
        let mut sockets = vec![Arc::new(first)];
        while sockets.len() < cores {
            let socket = bind(address).map_err(|source| ListenError::Bind { address, source })?;
            sockets.push(Arc::new(socket));
        }
        Ok(Self { address, sockets, tls: None, certificate: None })
    }

    /// Listens on sockets that another process opened, with at least `cores` of them: they share what they have.
    pub fn adopt(sockets: Vec<TcpListener>, cores: usize) -> io::Result<Self> {
        let first = sockets.first().ok_or(io::ErrorKind::InvalidInput)?;
        let address = first.local_addr()?;
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            keep_little_unsent(&SockRef::from(socket))?;
        }
        let sockets: Vec<_> = sockets.into_iter().map(Arc::new).collect();
        let count = sockets.len().max(cores);
        let sockets = sockets.into_iter().cycle().take(count).collect();
        Ok(Self { address, sockets, tls: None, certificate: None })
    }

    /// Speaks TLS there, with this certificate chain and key in PEM.
    pub fn with_tls(self, chain: &[u8], key: &[u8]) -> Result<Self, ListenError> {
        self.with_certificate(ServerCertificate::from_pem(chain, key)?)
    }

    /// Speaks TLS there, with this certificate until it is replaced.
    pub fn with_certificate(mut self, certificate: ServerCertificate) -> Result<Self, ListenError> {
        let resolver = Arc::new(CertificateResolver::new(certificate));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(ListenError::Tls)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::<CertificateResolver>::clone(&resolver));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Clients keep their sessions themselves: remembering them here would end at some hundreds.
        config.ticketer = Ticketer::new().map_err(ListenError::Tls)?;
        self.tls = Some(TlsAcceptor::from(Arc::new(config)));
        self.certificate = Some(resolver);
        Ok(self)
    }

    /// The certificate that is presented there, if TLS is spoken. It can be replaced at any time: open connections stay,
    /// and sessions are resumed as before.
    pub fn certificate(&self) -> Option<&Arc<CertificateResolver>> {
        self.certificate.as_ref()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether TLS is spoken there.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The sockets, to hand them to another process.
    pub fn sockets(&self) -> &[Arc<TcpListener>] {
        &self.sockets
    }
}

fn bind_alone(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    keep_little_unsent(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What is set on a listening socket holds for every connection it takes.
fn keep_little_unsent(socket: &Socket) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(UNSENT)?;
    Ok(())
}
