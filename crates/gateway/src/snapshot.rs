//! The active policy with its upstreams, swapped as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thiserror::Error;
use tidegate_headers::{BodyStyle, HeaderStyle};
use tidegate_policy::{ActivePolicy, ClientKind, CounterScope, Plan, Route};
use tidegate_store::Store;
use tidegate_telemetry::{Exposition, RuleSlots};
use tidegate_tower::bulkhead::Bulkhead;

use crate::act::cached::PolicyMemory;
use crate::resource_limits::ResourceLimits;
use crate::upstream::{Server, UpstreamError, UpstreamGroup, bulkhead};
use crate::worker::SharedState;

/// A policy with its upstreams.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) policy: Arc<ActivePolicy>,
    upstreams: Vec<UpstreamGroup>,
    /// The bulkheads of routes, in the order of the routes in the plan.
    route_bulkheads: Vec<Option<Bulkhead>>,
    /// The responses in place of rejections, if a limit has them.
    memory: Option<PolicyMemory>,
    /// The metric slots of the rules.
    pub(crate) counted: RuleSlots,
    /// Whether the next request with ignored forwarding headers triggers a warning.
    warns_of_ignored_forwarding: AtomicBool,
}

/// Why a policy cannot be served.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// An upstream cannot be served.
    #[error("upstream `{upstream}`: {source}")]
    Upstream {
        /// The upstream's name.
        upstream: String,
        /// The cause.
        source: UpstreamError,
    },
}

impl Snapshot {
    /// A policy with its upstreams. Servers that the previous snapshot has keep their state.
    pub(crate) fn new<S: Store + 'static>(
        policy: Arc<ActivePolicy>,
        previous_snapshot: Option<&Self>,
        shared: &SharedState<S>,
        limits: &ResourceLimits,
    ) -> Result<Self, SnapshotError> {
        let (metrics, clock) = (shared.telemetry.metrics(), shared.limiter.clock());
        let mut upstreams = Vec::new();
        for planned in &policy.matcher.plan().upstreams {
            let mut upstream = UpstreamGroup::new(planned, metrics.upstream(&planned.name), clock, limits)
                .map_err(|source| SnapshotError::Upstream { upstream: planned.name.clone(), source })?;
            if let Some(previous) =
                previous_snapshot.and_then(|snapshot| snapshot.upstream_named(&planned.name))
            {
                upstream.adopt(previous);
            }
            upstreams.push(upstream);
        }
        let counted = metrics.apply(policy.matcher.plan());
        let plan = policy.matcher.plan();
        let warns = plan.clients.trusted_proxies.is_empty() && counts_addresses(plan);
        let route_bulkheads = plan.routes.iter().map(|route| {
            let known = previous_snapshot.and_then(|previous| previous.bulkhead_of_same(route));
            let planned = route.bulkhead.as_ref()?;
            Some(known.unwrap_or_else(|| bulkhead(planned)))
        });
        let route_bulkheads = route_bulkheads.collect();
        let warns_of_ignored_forwarding = AtomicBool::new(warns);
        let memory = PolicyMemory::new(plan, previous_snapshot.and_then(Self::memory));
        Ok(Self { policy, upstreams, route_bulkheads, memory, counted, warns_of_ignored_forwarding })
    }

    /// The bulkhead of a route of this policy.
    pub(crate) fn route_bulkhead(&self, route: &Route) -> Option<&Bulkhead> {
        route.bulkhead.as_ref()?;
        self.route_bulkheads.get(self.plan().routes.element_offset(route)?)?.as_ref()
    }

    /// The bulkhead of the route that has the same patterns and the same bulkhead as a route of another policy.
    fn bulkhead_of_same(&self, other: &Route) -> Option<Bulkhead> {
        let is_same = |route: &&Route| {
            (&route.host, &route.path, &route.bulkhead) == (&other.host, &other.path, &other.bulkhead)
        };
        self.route_bulkhead(self.plan().routes.iter().find(is_same)?).cloned()
    }

    /// The shortest time after which any upstream's idle connections are closed.
    pub(crate) fn shortest_idle(&self) -> Duration {
        let idle = self.upstreams.iter().map(|upstream| upstream.resilience.timeouts.idle);
        idle.min().unwrap_or(Duration::MAX)
    }

    /// Whether to warn that the forwarding headers of a request were ignored. True once at most, and only if the policy
    /// counts addresses and trusts no proxy.
    pub(crate) fn is_first_ignored_forwarding(&self) -> bool {
        // The load avoids a write, which would invalidate the cache line on other CPU cores.
        self.warns_of_ignored_forwarding.load(Ordering::Relaxed)
            && self.warns_of_ignored_forwarding.swap(false, Ordering::Relaxed)
    }

    fn upstream_named(&self, name: &str) -> Option<&UpstreamGroup> {
        self.upstreams.iter().find(|upstream| upstream.name == name)
    }

    pub(crate) fn plan(&self) -> &Plan {
        self.policy.matcher.plan()
    }

    pub(crate) fn error_body(&self) -> BodyStyle {
        self.plan().error_body
    }

    pub(crate) fn styles(&self) -> &[HeaderStyle] {
        &self.plan().headers
    }

    /// The upstream that the requests of `route` go to.
    pub(crate) fn upstream(&self, route: &Route) -> Option<&UpstreamGroup> {
        self.upstreams.get(route.upstream)
    }

    pub(crate) fn memory(&self) -> Option<&PolicyMemory> {
        self.memory.as_ref()
    }

    pub(crate) fn upstreams(&self) -> &[UpstreamGroup] {
        &self.upstreams
    }

    /// Writes the metrics of the servers.
    pub(crate) fn write_metrics(&self, page: &mut Exposition) {
        let mut family = page.gauge("tidegate_upstream_healthy", "1 if the server is healthy, otherwise 0.");
        self.each_server(|labels, server| family.sample(labels, u8::from(server.is_healthy())));
        let mut family = page.gauge("tidegate_upstream_in_flight", "Requests in flight to the server.");
        self.each_server(|labels, server| family.sample(labels, server.load()));
        let mut family = page.gauge("tidegate_upstream_connections", "Open connections to the server.");
        self.each_server(|labels, server| family.sample(labels, server.connections()));
    }

    fn each_server(&self, mut visit: impl FnMut(&[(&str, &str)], &Server)) {
        for upstream in &self.upstreams {
            for server in &upstream.servers {
                visit(&[("upstream", &upstream.name), ("server", &server.addr)], server);
            }
        }
    }
}

/// Whether any limit counts clients by their address.
fn counts_addresses(plan: &Plan) -> bool {
    let limits = &plan.rate_limits;
    let rules = limits.rules.iter().map(|custom| &custom.count);
    let mut counts = rules.chain(limits.concurrent.iter().map(|rule| &rule.count));
    let by_address = |count: &CounterScope| match count {
        CounterScope::Per(kinds) | CounterScope::PerEach(kinds) => kinds.contains(&ClientKind::Ip),
        CounterScope::Client | CounterScope::Everybody => false,
    };
    plan.clients.identify_by.contains(&ClientKind::Ip) || counts.any(by_address)
}
