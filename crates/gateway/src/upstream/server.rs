//! Upstreams and their servers. All workers share their state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};
use thiserror::Error;
use tidegate_policy::{Balance, HealthCheckPlan};
use tidegate_telemetry::UpstreamCounts;

use super::balance::HashRing;

/// An upstream: a group of interchangeable servers.
#[derive(Debug)]
pub(crate) struct UpstreamGroup {
    pub(crate) name: String,
    pub(crate) servers: Vec<Arc<Server>>,
    pub(super) balance: Balance,
    pub(crate) health: Option<HealthCheckPlan>,
    pub(super) turn: AtomicUsize,
    pub(super) ring: HashRing,
    /// Its metrics.
    pub(crate) counts: Arc<UpstreamCounts>,
}

impl UpstreamGroup {
    pub(crate) fn new(
        plan: &tidegate_policy::UpstreamPlan,
        counts: Arc<UpstreamCounts>,
    ) -> Result<Self, InvalidServerUrl> {
        let tidegate_policy::UpstreamPlan { name, servers, balance, health, resilience: _ } = plan;
        let servers =
            servers.iter().map(|url| Server::parse(url).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        let ring = HashRing::new(servers.iter().map(|server| server.url.as_str()));
        Ok(Self {
            name: name.clone(),
            servers,
            balance: *balance,
            health: health.clone(),
            turn: AtomicUsize::new(0),
            ring,
            counts,
        })
    }

    /// Keeps the state of the servers that `earlier` has too.
    pub(crate) fn adopt(&mut self, earlier: &Self) {
        for server in &mut self.servers {
            if let Some(known) = earlier.servers.iter().find(|known| known.url == server.url) {
                *server = Arc::clone(known);
            }
        }
    }
}

/// One server of an upstream.
#[derive(Debug)]
pub(crate) struct Server {
    /// The URL as configured; identifies the server.
    pub(crate) url: String,
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    pub(crate) host_header: HeaderValue,
    /// `host:port` to connect to.
    pub(crate) addr: String,
    pub(crate) protocol: Protocol,
    healthy: AtomicBool,
    /// Requests in flight, of all workers.
    in_flight: AtomicUsize,
    /// Open connections, of all workers.
    connections: AtomicUsize,
}

/// The protocol of a server's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    /// HTTP/2 without TLS (prior knowledge).
    Http2,
    /// TLS; the server chooses between HTTP/2 and HTTP/1.1.
    Tls,
}

/// The URL of a server is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid server URL `{url}`: expected http://host:port, https://host:port or h2c://host:port")]
pub struct InvalidServerUrl {
    url: String,
}

impl Server {
    pub(super) fn parse(url: &str) -> Result<Self, InvalidServerUrl> {
        let bad = || InvalidServerUrl { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let authority = uri.authority().cloned().ok_or_else(bad)?;
        let (scheme, protocol, port) = match uri.scheme_str() {
            Some("http") => (Scheme::HTTP, Protocol::Http1, 80),
            Some("h2c") => (Scheme::HTTP, Protocol::Http2, 80),
            Some("https") => (Scheme::HTTPS, Protocol::Tls, 443),
            _ => return Err(bad()),
        };
        let host = authority.host();
        Ok(Self {
            url: url.to_owned(),
            addr: format!("{host}:{}", authority.port_u16().unwrap_or(port)),
            host_header: HeaderValue::from_str(authority.as_str()).map_err(|_| bad())?,
            scheme,
            authority,
            protocol,
            healthy: AtomicBool::new(true),
            in_flight: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        })
    }

    /// The host name that the certificate must be valid for.
    pub(crate) fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Stores the result of a health check. Returns whether it has changed.
    pub(crate) fn set_healthy(&self, healthy: bool) -> bool {
        self.healthy.swap(healthy, Ordering::Relaxed) != healthy
    }

    pub(crate) fn load(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection until the guard is dropped.
    pub(super) fn count_connection(self: &Arc<Self>) -> UpstreamConnCount {
        self.connections.fetch_add(1, Ordering::Relaxed);
        UpstreamConnCount(Arc::clone(self))
    }

    /// Counts a request as in flight until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlightGuard {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(Arc::clone(self))
    }
}

/// Counts an open connection to a server.
#[derive(Debug)]
pub(super) struct UpstreamConnCount(Arc<Server>);

impl Drop for UpstreamConnCount {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a request in flight to a server.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<Server>);

impl InFlightGuard {
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.0
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_url_is_parsed_and_invalid_ones_are_rejected() {
        let server = Server::parse("http://10.0.0.1:3000").unwrap();
        assert_eq!((server.addr.as_str(), server.protocol), ("10.0.0.1:3000", Protocol::Http1));
        assert_eq!(Server::parse("https://api.internal").unwrap().addr, "api.internal:443");
        assert_eq!(Server::parse("h2c://[::1]:50051").unwrap().host(), "::1");
        for bad in ["10.0.0.1:3000", "ftp://a", "http://", "/path"] {
            assert!(Server::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn server_load_is_the_number_of_live_guards() {
        let server = Arc::new(Server::parse("http://a:1").unwrap());
        let (first, second) = (server.begin(), server.begin());
        assert_eq!(server.load(), 2);
        drop(first);
        drop(second);
        assert_eq!(server.load(), 0);
    }

    #[test]
    fn server_kept_in_reload_keeps_its_health() {
        let upstream = |servers: [&str; 2]| {
            let servers = servers.map(str::to_owned).to_vec();
            let (name, balance) = ("api".to_owned(), Balance::RoundRobin);
            let plan = tidegate_policy::UpstreamPlan {
                name,
                servers,
                balance,
                health: None,
                resilience: tidegate_policy::ResiliencePlan::default(),
            };
            let metrics = tidegate_telemetry::Metrics::new(1, tidegate_core::Timestamp::ZERO);
            UpstreamGroup::new(&plan, metrics.upstream("api")).unwrap()
        };
        let old = upstream(["http://a:1", "http://b:1"]);
        old.servers[1].set_healthy(false);
        let mut new = upstream(["http://b:1", "http://c:1"]);
        new.adopt(&old);
        assert!(!new.servers[0].is_healthy());
        assert!(new.servers[1].is_healthy());
    }
}
