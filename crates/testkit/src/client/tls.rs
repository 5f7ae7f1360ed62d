//! TLS clients.

use std::io::{self, Read, Write};
use std::net::{TcpStream as BlockingTcpStream, ToSocketAddrs};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificate::Certificate;
use crate::wait::{DEADLINE, within};

/// A store that trusts these certificates.
pub fn roots(trusted: &[&Certificate]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate.der.clone()).expect("a certificate");
    }
    roots
}

/// A client that trusts `roots`, offers `protocols` (ALPN) and remembers sessions.
pub fn tls_config(roots: RootCertStore, protocols: &[&str]) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Arc::new(config)
}

fn server_name(name: &str) -> ServerName<'static> {
    ServerName::try_from(name.to_owned()).expect("a server name")
}

/// A handshake over `stream` with a server that must prove to be `name`.
pub async fn connect_tls(
    stream: TcpStream,
    name: &str,
    config: &Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let connector = TlsConnector::from(Arc::clone(config));
    within("a handshake", connector.connect(server_name(name), stream)).await
}

/// A TLS connection without a runtime.
#[derive(Debug)]
pub struct BlockingTls {
    stream: StreamOwned<ClientConnection, BlockingTcpStream>,
}

impl BlockingTls {
    /// Connects to a server that must prove to be `name`. The handshake takes place with the first request.
    pub fn open(address: impl ToSocketAddrs, name: &str, config: Arc<ClientConfig>) -> Self {
        let tcp = BlockingTcpStream::connect(address).expect("a connection");
        tcp.set_read_timeout(Some(DEADLINE)).expect("a live socket");
        let connection = ClientConnection::new(config, server_name(name)).expect("a client");
        Self { stream: StreamOwned::new(connection, tcp) }
    }

    /// Sends `GET /` and returns the status. Only responses without a body leave nothing unread.
    pub fn get(&mut self) -> u16 {
        self.stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("an open connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("a response");
            head.extend(byte);
        }
        let head = String::from_utf8(head).expect("a head of ASCII");
        head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
    }

    /// The certificate that the server presented.
    pub fn presented(&self) -> &CertificateDer<'static> {
        &self.stream.conn.peer_certificates().expect("a handshake")[0]
    }
}
