//! Servers and what is known of them. Shared by all cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tidegate_policy::{Balance, Health};
use tidegate_telemetry::UpstreamCounts;

use super::balance::Ring;
use http::header::HOST;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Uri, Version};
use thiserror::Error;

/// A service: servers that answer the same.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) name: String,
    pub(crate) servers: Vec<Arc<Server>>,
    pub(super) balance: Balance,
    pub(crate) health: Option<Health>,
    pub(super) turn: AtomicUsize,
    pub(super) ring: Ring,
    /// Where what it does is counted.
    pub(crate) counts: Arc<UpstreamCounts>,
}

impl Upstream {
    pub(crate) fn new(
        plan: &tidegate_policy::Upstream,
        counts: Arc<UpstreamCounts>,
    ) -> Result<Self, BadServer> {
        let tidegate_policy::Upstream { name, servers, balance, health } = plan;
        let servers =
            servers.iter().map(|url| Server::parse(url).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        let ring = Ring::of(servers.iter().map(|server| server.url.as_str()));
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

    /// Takes over from an earlier upstream what it knew of the servers both have.
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
    /// As the operator wrote it; who it is.
    pub(crate) url: String,
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    pub(crate) host_header: HeaderValue,
    /// `host:port` to connect to.
    pub(crate) place: String,
    pub(crate) speaks: Speaks,
    healthy: AtomicBool,
    busy: AtomicUsize,
    /// Connections of all cores to it.
    connected: AtomicUsize,
}

/// What is spoken to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http1,
    /// HTTP/2 without TLS, known beforehand.
    Http2,
    /// TLS; the server chooses between HTTP/2 and HTTP/1.1.
    Tls,
}

/// A server that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{url}` is not a server; write http://host:port, https://host:port or h2c://host:port")]
pub struct BadServer {
    url: String,
}

impl Server {
    pub(super) fn parse(url: &str) -> Result<Self, BadServer> {
        let bad = || BadServer { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let authority = uri.authority().cloned().ok_or_else(bad)?;
        let (scheme, speaks, port) = match uri.scheme_str() {
            Some("http") => (Scheme::HTTP, Speaks::Http1, 80),
            Some("h2c") => (Scheme::HTTP, Speaks::Http2, 80),
            Some("https") => (Scheme::HTTPS, Speaks::Tls, 443),
            _ => return Err(bad()),
        };
        let host = authority.host();
        Ok(Self {
            url: url.to_owned(),
            place: format!("{host}:{}", authority.port_u16().unwrap_or(port)),
            host_header: HeaderValue::from_str(authority.as_str()).map_err(|_| bad())?,
            scheme,
            authority,
            speaks,
            healthy: AtomicBool::new(true),
            busy: AtomicUsize::new(0),
            connected: AtomicUsize::new(0),
        })
    }

    /// Addresses a request to this server in the form of HTTP/1.1. Says whether a `Host` had to be added: the request
    /// had none, and for another server it is another one.
    pub(super) fn address_http1<B>(&self, request: &mut Request<B>) -> bool {
        *request.version_mut() = Version::HTTP_11;
        if request.uri().authority().is_some() {
            let path = request.uri().path_and_query().cloned();
            *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
        }
        let has_host = request.headers().contains_key(HOST);
        if !has_host {
            request.headers_mut().insert(HOST, self.host_header.clone());
        }
        !has_host
    }

    /// The head of a request to this server in the form of HTTP/2; `None` if its `Host` is no authority. The request
    /// itself stays as it is: it may have to be sent again.
    pub(super) fn http2_head<B>(&self, request: &Request<B>) -> Option<Request<()>> {
        let mut head = Request::new(());
        head.method_mut().clone_from(request.method());
        head.headers_mut().clone_from(request.headers());
        let host = head.headers_mut().remove(HOST).filter(|host| !host.is_empty());
        let authority = match host {
            Some(host) => Authority::try_from(host.as_bytes()).ok()?,
            None => self.authority.clone(),
        };
        let path = request.uri().path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(authority).path_and_query(path);
        *head.uri_mut() = uri.build().ok()?;
        *head.version_mut() = Version::HTTP_2;
        Some(head)
    }

    /// The name its certificate must bear.
    pub(crate) fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// What a health check found; whether that is new.
    pub(crate) fn set_healthy(&self, healthy: bool) -> bool {
        self.healthy.swap(healthy, Ordering::Relaxed) != healthy
    }

    pub(crate) fn load(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    /// Counts a connection to it until the guard is dropped.
    pub(super) fn connected(self: &Arc<Self>) -> Connected {
        self.connected.fetch_add(1, Ordering::Relaxed);
        Connected(Arc::clone(self))
    }

    /// Counts a request towards its load until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }
}

/// A connection to a server that is open.
#[derive(Debug)]
pub(super) struct Connected(Arc<Server>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that a server is working on.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Server>);

impl Busy {
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_as_written() {
        let server = Server::parse("http://10.0.0.1:3000").unwrap();
        assert_eq!((server.place.as_str(), server.speaks), ("10.0.0.1:3000", Speaks::Http1));
        assert_eq!(Server::parse("https://api.internal").unwrap().place, "api.internal:443");
        assert_eq!(Server::parse("h2c://[::1]:50051").unwrap().host(), "::1");
        for bad in ["10.0.0.1:3000", "ftp://a", "http://", "/path"] {
            assert!(Server::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn http2_head_has_the_authority_of_the_request_however_often_it_is_made() {
        let server = Server::parse("h2c://10.0.0.1:3000").unwrap();
        let mut request = Request::new(());
        *request.uri_mut() = "/a?b".parse().unwrap();
        assert_eq!(server.http2_head(&request).unwrap().uri(), "http://10.0.0.1:3000/a?b");
        request.headers_mut().insert(HOST, HeaderValue::from_static("tenant.example:81"));
        for _ in 0..2 {
            let head = server.http2_head(&request).unwrap();
            assert_eq!(
                (head.uri(), head.headers().len()),
                (&Uri::from_static("http://tenant.example:81/a?b"), 0)
            );
        }
        for bad in ["a%41.example", "a:b:c", "["] {
            request.headers_mut().insert(HOST, HeaderValue::from_static(bad));
            assert!(server.http2_head(&request).is_none(), "{bad}: not sent as another host");
        }
    }

    #[test]
    fn a_server_is_busy_as_long_as_its_guards_live() {
        let server = Arc::new(Server::parse("http://a:1").unwrap());
        let (first, second) = (server.begin(), server.begin());
        assert_eq!(server.load(), 2);
        drop(first);
        drop(second);
        assert_eq!(server.load(), 0);
    }

    #[test]
    fn a_server_kept_over_a_reload_keeps_its_health() {
        let upstream = |servers: [&str; 2]| {
            let servers = servers.map(str::to_owned).to_vec();
            let (name, balance) = ("api".to_owned(), Balance::RoundRobin);
            let plan = tidegate_policy::Upstream { name, servers, balance, health: None };
            let metrics = tidegate_telemetry::Metrics::new(1, tidegate_core::Timestamp::ZERO);
            Upstream::new(&plan, metrics.upstream("api")).unwrap()
        };
        let old = upstream(["http://a:1", "http://b:1"]);
        old.servers[1].set_healthy(false);
        let mut new = upstream(["http://b:1", "http://c:1"]);
        new.adopt(&old);
        assert!(!new.servers[0].is_healthy());
        assert!(new.servers[1].is_healthy());
    }
}
