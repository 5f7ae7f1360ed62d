//! Opens connections to servers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use socket2::{SockRef, TcpKeepalive};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::server::{Server, ServerProtocol};
use super::stream::UpstreamStream;

/// TCP keep-alive probes start after this long without input. A machine that fails does not close its connections; nothing
/// else would detect that during quiet responses and on upgraded connections.
const PROBE_AFTER: Duration = Duration::from_secs(20);
/// The interval between probes.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// The connection is closed after this many probes without a response.
const PROBES: u32 = 2;
/// Sent data must be acknowledged within this time: longer than a route change takes. It
/// equals the time until the last probe, because the kernel applies it to probes as well.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens connections. All workers share its settings.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: TlsConnector,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

/// TLS to servers cannot be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// rustls rejects the configuration.
    #[error("cannot set up TLS to upstreams")]
    Rustls(#[from] rustls::Error),
}

impl Connector {
    /// Trusts the certificates of the system, and those of `also`.
    pub(crate) fn new(also: &RootCertStore) -> Result<Self, TlsError> {
        let mut roots = also.clone();
        // A system without certificates can still connect without TLS.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { tls: TlsConnector::from(Arc::new(config)) })
    }

    /// Opens a connection within `timeout`. Returns it, and whether it uses HTTP/2.
    pub(crate) async fn connect(
        &self,
        server: &Server,
        timeout: Duration,
    ) -> io::Result<(UpstreamStream, bool)> {
        let connecting = async {
            let tcp = TcpStream::connect(&server.addr).await?;
            set_options(&tcp)?;
            if server.protocol != ServerProtocol::Tls {
                return Ok((UpstreamStream::Plain(tcp), server.protocol == ServerProtocol::Http2));
            }
            let name = ServerName::try_from(server.host().to_owned())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let tls = self.tls.connect(name, tcp).await?;
            let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok((UpstreamStream::Tls(Box::new(tls)), is_http2))
        };
        tokio::time::timeout(timeout, connecting)
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "connect timed out")))
    }
}

/// Disables Nagle's algorithm and enables detection of failed machines.
fn set_options(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn upstream_socket_has_keep_alive_and_user_timeout() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Server::parse(&url).unwrap();
        let connector = Connector::new(&RootCertStore::empty()).unwrap();
        let (stream, is_http2) = connector.connect(&server, Duration::from_secs(5)).await.unwrap();
        let UpstreamStream::Plain(tcp) = stream else { panic!("a connection without TLS") };
        let socket = SockRef::from(&tcp);
        assert!(!is_http2 && tcp.nodelay().unwrap() && socket.keepalive().unwrap());
        let probes = (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
        assert_eq!(probes, (PROBE_AFTER, PROBE_EVERY));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), PROBES);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(USER_TIMEOUT));
        assert_eq!(USER_TIMEOUT, PROBE_AFTER + PROBE_EVERY * PROBES);
    }
}
