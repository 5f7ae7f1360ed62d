//! Listening sockets: one for each worker, so that workers do not contend for connections.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;

use crate::certificate::{CertificateResolver, ServerCertificate, ServerCertificateError};
use crate::client_auth::ClientAuthority;

/// The length of the accept queue.
const BACKLOG: i32 = 4_096;

/// Unsent bytes that the kernel buffers for a slow client (`TCP_NOTSENT_LOWAT`); the default is megabytes.
const UNSENT: u32 = 128 << 10;

/// A listening address, with or without TLS.
#[derive(Clone)]
pub struct Listener {
    address: SocketAddr,
    /// One for each worker.
    sockets: Vec<Arc<TcpListener>>,
    tls: Option<TlsAcceptor>,
    certificate: Option<Arc<CertificateResolver>>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let workers = self.sockets.len();
        write!(f, "Listener({}, {workers} workers, tls: {})", self.address, self.tls.is_some())
    }
}

/// Why a listener cannot be opened.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The address is invalid or cannot be resolved.
    #[error("invalid listen address `{address}`: expected host:port, for example 127.0.0.1:8080")]
    NoAddress {
        /// The address as configured.
        address: String,
    },
    /// The system rejects the address.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error("invalid certificate or key")]
    Certificate(#[from] ServerCertificateError),
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
}

impl Listener {
    /// Listens on `address` with one socket for each of `workers`.
    pub fn bind(address: &str, workers: usize) -> Result<Self, ListenError> {
        let no_address = || ListenError::NoAddress { address: address.to_owned() };
        let mut found = address.to_socket_addrs().map_err(|_| no_address())?;
        let wanted = found.next().ok_or_else(no_address)?;
        // SO_REUSEPORT would let a second gateway share the port unnoticed. Binding once without it detects that.
        drop(bind_exclusively(wanted).map_err(|source| ListenError::Bind { address: wanted, source })?);
        let first = bind(wanted).map_err(|source| ListenError::Bind { address: wanted, source })?;
        // For port 0 the system has chosen one.
        let address = first.local_addr().map_err(|source| ListenError::Bind { address: wanted, source })?;
        let mut sockets = vec![Arc::new(first)];
        while sockets.len() < workers {
            let socket = bind(address).map_err(|source| ListenError::Bind { address, source })?;
            sockets.push(Arc::new(socket));
        }
        Ok(Self { address, sockets, tls: None, certificate: None })
    }

    /// Listens on sockets that another process opened. If there are fewer sockets than `workers`, workers share them.
    pub fn adopt(sockets: Vec<TcpListener>, workers: usize) -> io::Result<Self> {
        let first = sockets.first().ok_or(io::ErrorKind::InvalidInput)?;
        let address = first.local_addr()?;
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            limit_unsent(&SockRef::from(socket))?;
        }
        let sockets: Vec<_> = sockets.into_iter().map(Arc::new).collect();
        let count = sockets.len().max(workers);
        let sockets = sockets.into_iter().cycle().take(count).collect();
        Ok(Self { address, sockets, tls: None, certificate: None })
    }

    /// Enables TLS with this certificate chain and key in PEM.
    pub fn with_tls(self, chain: &[u8], key: &[u8]) -> Result<Self, ListenError> {
        self.with_certificate(ServerCertificate::from_pem(chain, key)?)
    }

    /// Enables TLS with this certificate, which can be replaced later.
    pub fn with_certificate(self, certificate: ServerCertificate) -> Result<Self, ListenError> {
        self.with_mutual_tls(certificate, None)
    }

    /// Enables TLS with this certificate. Clients need a certificate of `authority`, if there is one.
    pub fn with_mutual_tls(
        mut self,
        certificate: ServerCertificate,
        authority: Option<ClientAuthority>,
    ) -> Result<Self, ListenError> {
        let resolver = Arc::new(CertificateResolver::new(certificate));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(ListenError::Tls)?;
        let config = match authority {
            Some(ClientAuthority(verifier)) => config.with_client_cert_verifier(verifier),
            None => config.with_no_client_auth(),
        };
        let mut config = config.with_cert_resolver(Arc::<CertificateResolver>::clone(&resolver));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Session tickets are stored by the clients; a session cache here would hold only a few hundred.
        config.ticketer = Ticketer::new().map_err(ListenError::Tls)?;
        self.tls = Some(TlsAcceptor::from(Arc::new(config)));
        self.certificate = Some(resolver);
        Ok(self)
    }

    /// The certificate, if TLS is enabled. It can be replaced at any time: open connections stay open, and sessions can
    /// still be resumed.
    pub fn certificate(&self) -> Option<&Arc<CertificateResolver>> {
        self.certificate.as_ref()
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether TLS is enabled.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The sockets, one for each worker.
    pub fn sockets(&self) -> &[Arc<TcpListener>] {
        &self.sockets
    }

    /// Performs TLS handshakes, if TLS is enabled.
    pub fn tls(&self) -> Option<&TlsAcceptor> {
        self.tls.as_ref()
    }
}

fn bind_exclusively(address: SocketAddr) -> io::Result<Socket> {
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
    limit_unsent(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Connections inherit this option from the listening socket.
fn limit_unsent(socket: &Socket) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(UNSENT)?;
    Ok(())
}
