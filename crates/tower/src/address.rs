//! The address of the client of a request.

use std::net::{IpAddr, SocketAddr};

use http::{Extensions, Request};
use thiserror::Error;

/// Finds the address of a client. Closures implement it: `Fn(&Request) -> Option<IpAddr>`.
pub trait FindAddress<R> {
    /// The address. Clients for which this is `None` count as one. An error fails the call.
    fn address(&self, request: &R) -> Result<Option<IpAddr>, MissingConnectInfo>;
}

impl<R, F: Fn(&R) -> Option<IpAddr>> FindAddress<R> for F {
    #[inline]
    fn address(&self, request: &R) -> Result<Option<IpAddr>, MissingConnectInfo> {
        Ok(self(request))
    }
}

/// The address at the other end of the connection, which the server keeps in the extensions of a request: a [`SocketAddr`], axum's
/// `ConnectInfo<SocketAddr>` (feature `axum`) or tonic's `TcpConnectInfo`, over TLS too (feature `tonic`).
///
/// It is that of the client only if clients connect to the server themselves, without a proxy.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectInfoAddress;

impl<B> FindAddress<Request<B>> for ConnectInfoAddress {
    #[inline]
    fn address(&self, request: &Request<B>) -> Result<Option<IpAddr>, MissingConnectInfo> {
        of_connection(request.extensions()).map(|address| Some(address.ip())).ok_or(MissingConnectInfo)
    }
}

fn of_connection(extensions: &Extensions) -> Option<SocketAddr> {
    let address = extensions.get::<SocketAddr>().copied();
    #[cfg(feature = "axum")]
    let address = address.or_else(|| of_axum(extensions));
    #[cfg(feature = "tonic")]
    let address = address.or_else(|| of_tonic(extensions));
    address
}

#[cfg(feature = "axum")]
fn of_axum(extensions: &Extensions) -> Option<SocketAddr> {
    use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

    let real = extensions.get().map(|ConnectInfo(address)| *address);
    real.or_else(|| extensions.get().map(|MockConnectInfo(address)| *address))
}

#[cfg(feature = "tonic")]
fn of_tonic(extensions: &Extensions) -> Option<SocketAddr> {
    use tonic::metadata::MetadataMap;
    use tonic::transport::server::TcpConnectInfo;

    if let Some(info) = extensions.get::<TcpConnectInfo>() {
        return info.remote_addr();
    }
    // What it keeps over TLS can be named only with the features of tonic for TLS, which tonic itself knows.
    tonic::Request::from_parts(MetadataMap::new(), extensions.clone(), ()).remote_addr()
}

/// A request has no address of its connection: the server does not keep it. All clients would share one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the address of the client is unknown: serve an axum router with \
     `into_make_service_with_connect_info::<SocketAddr>()` (feature `axum` of tidegate-tower), a tonic service with \
     tonic's own server (feature `tonic`), or insert a `SocketAddr` into the extensions of each request"
)]
pub struct MissingConnectInfo;

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 80);

    fn address(insert: impl FnOnce(&mut Extensions)) -> Result<Option<IpAddr>, MissingConnectInfo> {
        let mut request = Request::new(());
        insert(request.extensions_mut());
        ConnectInfoAddress.address(&request)
    }

    #[test]
    fn connect_info_of_each_server_is_found() {
        let found = Ok(Some(PEER.ip()));
        assert_eq!(address(|extensions| _ = extensions.insert(PEER)), found);
        #[cfg(feature = "axum")]
        {
            use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
            assert_eq!(address(|extensions| _ = extensions.insert(ConnectInfo(PEER))), found);
            assert_eq!(address(|extensions| _ = extensions.insert(MockConnectInfo(PEER))), found);
        }
        #[cfg(feature = "tonic")]
        {
            use tonic::transport::server::TcpConnectInfo;
            let info = TcpConnectInfo { local_addr: None, remote_addr: Some(PEER) };
            assert_eq!(address(|extensions| _ = extensions.insert(info)), found);
        }
    }

    #[test]
    fn connect_info_that_is_missing_is_an_error_that_names_the_remedy() {
        let missing = address(|_| {}).unwrap_err();
        assert!(missing.to_string().contains("into_make_service_with_connect_info"), "{missing}");
    }
}
