//! The state of the upstreams for operators, and their commands.

use std::time::Duration;

use thiserror::Error;
use tidegate_core::{BreakerStatus, TimeSpan};
use tidegate_store::Store;
use tidegate_tower::breaker::CircuitBreaker;
use tidegate_tower::bulkhead::Bulkhead;
use tidegate_tower::load_shed::LoadShedder;

use crate::server::Gateway;
use crate::upstream::{OutageStatus, UnreachableUpstream, UpstreamGroup, unreachable};

/// An upstream at one moment.
#[derive(Clone, Debug)]
pub struct UpstreamStatus {
    /// Its name.
    pub name: String,
    /// Retries that the budget allows now.
    pub retry_budget_left: u64,
    /// Retries so far.
    pub retries: u64,
    /// Its bulkhead, if it has one.
    pub bulkhead: Option<BulkheadStatus>,
    /// Its bound on open connections, if it has one.
    pub connections: Option<BulkheadStatus>,
    /// Its load shedding, if that is on.
    pub shed: Option<ShedStatus>,
    /// The breaker of all servers together, if it has one.
    pub breaker: Option<BreakerStatus>,
    /// Its servers.
    pub servers: Vec<ServerStatus>,
}

/// A server at one moment.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// `host:port`.
    pub address: String,
    /// The result of the latest health check; true without health checks.
    pub is_healthy: bool,
    /// Its last failure to respond.
    pub last_failure: Option<OutageStatus>,
    /// How long it stays ejected, if it is.
    pub ejected_for: Option<TimeSpan>,
    /// Its own breaker, if it has one.
    pub breaker: Option<BreakerStatus>,
    /// Requests in flight.
    pub in_flight: usize,
    /// Open connections.
    pub connections: usize,
}

/// The bulkhead of a route at one moment.
#[derive(Clone, Debug)]
pub struct RouteStatus {
    /// The hosts and the paths of the route, as in the policy.
    pub route: String,
    /// Its bulkhead.
    pub bulkhead: BulkheadStatus,
}

/// A bulkhead at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkheadStatus {
    /// Permits in use.
    pub in_use: usize,
    /// Requests that wait for one.
    pub waiting: usize,
    /// The most permits in use.
    pub limit: usize,
    /// Requests that were rejected so far.
    pub rejected: u64,
}

/// Load shedding at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShedStatus {
    /// The adaptive limit.
    pub limit: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests that were rejected so far.
    pub rejected: u64,
}

/// What an operator does with a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerCommand {
    /// Reject all requests.
    Open,
    /// Admit all requests, whatever their results.
    Closed,
    /// Close it and forget all results.
    Reset,
}

/// Why a command to a breaker was not executed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BreakerCommandError {
    /// There is no such upstream.
    #[error("no upstream is called `{upstream}`")]
    UnknownUpstream {
        /// The name.
        upstream: String,
    },
    /// The upstream has no such server.
    #[error("upstream `{upstream}` has no server `{server}`")]
    UnknownServer {
        /// The name of the upstream.
        upstream: String,
        /// The server.
        server: String,
    },
    /// The upstream has no breaker.
    #[error("upstream `{upstream}` has no breaker; set `breaker` in its policy")]
    NoBreaker {
        /// The name of the upstream.
        upstream: String,
    },
    /// A server was named, but one breaker covers all servers.
    #[error("one breaker covers all servers of upstream `{upstream}`; leave out the server")]
    SharedBreaker {
        /// The name of the upstream.
        upstream: String,
    },
}

impl From<&Bulkhead> for BulkheadStatus {
    fn from(bulkhead: &Bulkhead) -> Self {
        Self {
            in_use: bulkhead.in_use(),
            waiting: bulkhead.waiting(),
            limit: bulkhead.config().concurrent,
            rejected: bulkhead.rejected(),
        }
    }
}

impl From<&LoadShedder> for ShedStatus {
    fn from(shedder: &LoadShedder) -> Self {
        let limit = shedder.limit();
        Self { limit: limit.limit(), in_flight: limit.in_flight(), rejected: limit.rejected() }
    }
}

impl BreakerCommand {
    fn apply(self, breaker: &CircuitBreaker) {
        let breaker = breaker.breaker();
        match self {
            Self::Open => breaker.force_open(),
            Self::Closed => breaker.force_closed(),
            Self::Reset => breaker.reset(),
        }
    }
}

impl<S: Store + 'static> Gateway<S> {
    /// The state of every upstream, in the order of the policy.
    pub fn upstream_status(&self) -> Vec<UpstreamStatus> {
        self.snapshot.load().upstreams().iter().map(upstream_status).collect()
    }

    /// The upstreams none of whose servers accepts a connection within `timeout`.
    pub async fn unreachable_upstreams(&self, timeout: Duration) -> Vec<UnreachableUpstream> {
        unreachable(self.snapshot.load_full().upstreams(), &self.connector, timeout).await
    }

    /// The bulkheads of routes, in the order of the policy.
    pub fn route_status(&self) -> Vec<RouteStatus> {
        let snapshot = self.snapshot.load();
        let routes = snapshot.plan().routes.iter();
        let status = routes.filter_map(|route| {
            let bulkhead = snapshot.route_bulkhead(route)?.into();
            Some(RouteStatus { route: format!("{} {}", route.host, route.path), bulkhead })
        });
        status.collect()
    }

    /// Commands the breaker of a server (`host:port` or its URL), or without one every breaker of an upstream.
    pub fn force_breaker(
        &self,
        upstream: &str,
        server: Option<&str>,
        command: BreakerCommand,
    ) -> Result<(), BreakerCommandError> {
        let (snapshot, name) = (self.snapshot.load(), || upstream.to_owned());
        let group = snapshot.upstreams().iter().find(|group| group.name == upstream);
        let group = group.ok_or_else(|| BreakerCommandError::UnknownUpstream { upstream: name() })?;
        let breakers = &group.resilience.breakers;
        let Some(server) = server else {
            let each = (0..group.servers.len()).filter_map(|index| breakers.of_server(index));
            let mut commanded =
                breakers.shared().into_iter().chain(each).map(|breaker| command.apply(breaker));
            commanded.next().ok_or_else(|| BreakerCommandError::NoBreaker { upstream: name() })?;
            commanded.for_each(drop);
            return Ok(());
        };
        let is_named = |known: &str, url: &str| known == server || url == server;
        let index =
            group.servers.iter().position(|known| is_named(&known.addr, &known.url)).ok_or_else(|| {
                BreakerCommandError::UnknownServer { upstream: name(), server: server.to_owned() }
            })?;
        match (breakers.of_server(index), breakers.shared()) {
            (Some(breaker), _) => command.apply(breaker),
            (None, Some(_)) => return Err(BreakerCommandError::SharedBreaker { upstream: name() }),
            (None, None) => return Err(BreakerCommandError::NoBreaker { upstream: name() }),
        }
        Ok(())
    }
}

fn upstream_status(group: &UpstreamGroup) -> UpstreamStatus {
    let (resilience, now) = (&group.resilience, group.clock.now());
    let servers = group.servers.iter().enumerate().map(|(index, server)| ServerStatus {
        address: server.addr.clone(),
        is_healthy: server.is_healthy(),
        last_failure: server.outage.status(now),
        ejected_for: server.ejected_for(now),
        breaker: resilience.breakers.of_server(index).map(CircuitBreaker::status),
        in_flight: server.load(),
        connections: server.connections(),
    });
    UpstreamStatus {
        name: group.name.clone(),
        retry_budget_left: resilience.budget.remaining(),
        retries: resilience.retries(),
        bulkhead: resilience.bulkhead.as_ref().map(BulkheadStatus::from),
        connections: resilience.connections.as_ref().map(BulkheadStatus::from),
        shed: resilience.shed.as_ref().map(ShedStatus::from),
        breaker: resilience.breakers.shared().map(CircuitBreaker::status),
        servers: servers.collect(),
    }
}
