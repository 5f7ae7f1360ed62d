//! New connections to servers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::server::{Server, Speaks};
use super::stream::Stream;

/// Opens connections; one for all cores.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: TlsConnector,
    pub(crate) timeout: Duration,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// TLS towards servers cannot be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// rustls does not agree.
    #[error("cannot set up TLS")]
    Rustls(#[from] rustls::Error),
}

impl Connector {
    /// Trusts the certificates that the machine trusts, and `also`.
    pub(crate) fn new(timeout: Duration, also: &RootCertStore) -> Result<Self, TlsError> {
        let mut roots = also.clone();
        // A machine without certificates can still reach servers without TLS.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { tls: TlsConnector::from(Arc::new(config)), timeout })
    }

    /// A connection, and whether HTTP/2 is spoken over it.
    pub(crate) async fn connect(&self, server: &Server) -> io::Result<(Stream, bool)> {
        let connecting = async {
            let tcp = TcpStream::connect(&server.place).await?;
            tcp.set_nodelay(true)?;
            if server.speaks != Speaks::Tls {
                return Ok((Stream::Plain(tcp), server.speaks == Speaks::Http2));
            }
            let name = ServerName::try_from(server.host().to_owned())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let tls = self.tls.connect(name, tcp).await?;
            let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok((Stream::Tls(Box::new(tls)), is_http2))
        };
        tokio::time::timeout(self.timeout, connecting).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not accept in time"))
        })
    }
}
