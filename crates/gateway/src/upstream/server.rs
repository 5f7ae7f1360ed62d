//! Upstreams and their servers. All workers share their state.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};
use thiserror::Error;
use tidegate_core::{CallOutcome, TimeSpan, Timestamp};
use tidegate_policy::{Balance, HealthCheckPlan, UpstreamPlan};
use tidegate_store::Clock;
use tidegate_telemetry::UpstreamCounts;

use super::balance::HashRing;
use super::client_shares::{ClientId, Evidence, FailureShares, RecentSuccesses, Thresholds};
use super::connection_slots::ConnectionSlot;
use super::connection_suspects::ConnectionSuspects;
use super::ejection::EjectionState;
use super::head_profile::AcceptedHead;
use super::outage::OutageState;
use super::resilience::{ResilienceError, ResilienceState};
use crate::resource_limits::ResourceLimits;

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
    pub(crate) resilience: ResilienceState,
    pub(crate) clock: Arc<dyn Clock>,
    /// Locked while a server is ejected, so that never too many are.
    ejecting: Mutex<()>,
}

/// Why an upstream cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UpstreamError {
    /// The URL of a server is invalid.
    #[error(transparent)]
    Url(#[from] InvalidServerUrl),
    /// Its resilience settings cannot be used.
    #[error(transparent)]
    Resilience(#[from] ResilienceError),
}

impl UpstreamGroup {
    pub(crate) fn new(
        plan: &UpstreamPlan,
        counts: Arc<UpstreamCounts>,
        clock: &Arc<dyn Clock>,
        limits: &ResourceLimits,
    ) -> Result<Self, UpstreamError> {
        let UpstreamPlan { name, servers, balance, health, resilience } = plan;
        let servers =
            servers.iter().map(|url| Server::parse(url).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        let ring = HashRing::new(servers.iter().map(|server| server.url.as_str()));
        Ok(Self {
            name: name.clone(),
            resilience: ResilienceState::new(resilience, servers.len(), clock, limits)?,
            servers,
            balance: *balance,
            health: health.clone(),
            turn: AtomicUsize::new(0),
            ring,
            counts,
            clock: Arc::clone(clock),
            ejecting: Mutex::default(),
        })
    }

    /// Keeps the state of the servers that `earlier` has too, and of the parts whose settings are the same. Changes nothing
    /// of that state: the reload may still fail.
    pub(crate) fn adopt(&mut self, earlier: &Self) {
        let known = |url: &str| earlier.servers.iter().position(|known| known.url == url);
        self.resilience.adopt(&earlier.resilience, |index| known(&self.servers.get(index)?.url));
        for server in &mut self.servers {
            if let Some(known) = known(&server.url).and_then(|index| earlier.servers.get(index)) {
                *server = Arc::clone(known);
            }
        }
    }

    /// Counts the result of an attempt. Returns for how long the server is ejected, if this result ejects it.
    #[inline]
    pub(crate) fn record_outcome(
        &self,
        index: usize,
        outcome: CallOutcome,
        evidence: Evidence,
    ) -> Option<TimeSpan> {
        let plan = self.resilience.plan.eject.as_ref();
        let server = self.servers.get(index)?;
        match (outcome, plan) {
            (CallOutcome::Success, _) => server.successes.record(evidence.client, evidence.at),
            (CallOutcome::Failure, Some(plan)) if !evidence.counts_fully => {
                let thresholds = Thresholds { in_a_row: Some(plan.after), window: None };
                let has_others = server.successes.has_other(evidence.client, evidence.at);
                if !server.shares.count(evidence.client, thresholds, has_others) {
                    return None;
                }
            }
            _ => {}
        }
        let is_due = server.ejection.record(outcome, plan, || self.clock.now());
        if outcome == CallOutcome::Success {
            // After the ejection has ended its streak, so that no failure counts in both.
            server.shares.end_streak();
        }
        if !is_due {
            return None;
        }
        self.eject(server)
    }

    /// Whether requests of other clients succeed at the server, or at any if one breaker covers all of them.
    pub(crate) fn serves_others(&self, index: usize, evidence: Evidence) -> bool {
        let Evidence { client, at, .. } = evidence;
        if self.resilience.breakers.shared().is_some() {
            return self.has_others(client, at);
        }
        self.servers.get(index).is_some_and(|server| server.successes.has_other(client, at))
    }

    /// Whether requests of any client succeed at the server.
    pub(crate) fn serves_any(&self, index: usize, at: Timestamp) -> bool {
        self.servers.get(index).is_some_and(|server| server.successes.has_any(at))
    }

    /// Whether requests of other clients succeed at any server.
    pub(super) fn has_others(&self, client: ClientId, at: Timestamp) -> bool {
        self.servers.iter().any(|server| server.successes.has_other(client, at))
    }

    /// Ejects a server, unless too many are ejected already.
    #[cold]
    fn eject(&self, server: &Server) -> Option<TimeSpan> {
        let plan = self.resilience.plan.eject.as_ref()?;
        let _ejecting = self.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let ejected = self.servers.iter().filter(|server| server.ejection.ejected_for(now).is_some());
        // Another worker may have ejected it.
        let is_allowed = ejected.count() < self.max_ejected() && server.ejection.ejected_for(now).is_none();
        is_allowed.then(|| server.ejection.eject(plan, now))
    }

    /// How many servers may be ejected at a time; never the only one.
    fn max_ejected(&self) -> usize {
        let (count, plan) = (self.servers.len(), self.resilience.plan.eject.as_ref());
        let most = plan.map_or(0, |plan| plan.at_most.of(count as u64));
        usize::try_from(most).unwrap_or(usize::MAX).min(count.saturating_sub(1))
    }

    /// Ends ejections that are too many after a reload has removed servers: those that would end first.
    pub(crate) fn limit_ejections(&self) {
        let now = self.clock.now();
        let mut ejected: Vec<_> = self
            .servers
            .iter()
            .filter_map(|server| Some((server.ejection.ejected_for(now)?, server)))
            .collect();
        ejected.sort_unstable_by_key(|(left, _)| *left);
        let surplus = ejected.len().saturating_sub(self.max_ejected());
        for (_, server) in ejected.into_iter().take(surplus) {
            server.ejection.begin_slow_start(now);
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
    pub(crate) protocol: ServerProtocol,
    healthy: AtomicBool,
    pub(super) ejection: EjectionState,
    pub(crate) outage: OutageState,
    /// What clients may contribute to its ejection.
    shares: FailureShares,
    successes: RecentSuccesses,
    pub(super) accepted_head: AcceptedHead,
    pub(super) suspects: ConnectionSuspects,
    /// Requests in flight, of all workers.
    in_flight: AtomicUsize,
    /// Open connections, of all workers.
    connections: AtomicUsize,
}

/// The protocol of a server's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerProtocol {
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
            Some("http") => (Scheme::HTTP, ServerProtocol::Http1, 80),
            Some("h2c") => (Scheme::HTTP, ServerProtocol::Http2, 80),
            Some("https") => (Scheme::HTTPS, ServerProtocol::Tls, 443),
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
            ejection: EjectionState::default(),
            outage: OutageState::default(),
            shares: FailureShares::default(),
            successes: RecentSuccesses::default(),
            accepted_head: AcceptedHead::default(),
            suspects: ConnectionSuspects::default(),
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

    /// Stores the result of a health check at `now`. Returns whether it has changed. A server that has recovered starts slowly.
    pub(crate) fn set_healthy(&self, healthy: bool, now: Timestamp) -> bool {
        let has_changed = self.healthy.swap(healthy, Ordering::Relaxed) != healthy;
        if has_changed && healthy {
            self.ejection.begin_slow_start(now);
        }
        has_changed
    }

    /// How long it is ejected for.
    pub(crate) fn ejected_for(&self, now: Timestamp) -> Option<TimeSpan> {
        self.ejection.ejected_for(now)
    }

    pub(crate) fn load(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection until the guard is dropped, which keeps the connection's `slot` of the upstream.
    pub(super) fn count_connection(self: &Arc<Self>, slot: Option<ConnectionSlot>) -> UpstreamConnCount {
        self.connections.fetch_add(1, Ordering::Relaxed);
        UpstreamConnCount { server: Arc::clone(self), _slot: slot }
    }

    /// Counts a request as in flight until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlightGuard {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(Arc::clone(self))
    }
}

/// Counts an open connection to a server.
#[derive(Debug)]
pub(super) struct UpstreamConnCount {
    server: Arc<Server>,
    _slot: Option<ConnectionSlot>,
}

impl Drop for UpstreamConnCount {
    fn drop(&mut self) {
        self.server.connections.fetch_sub(1, Ordering::Relaxed);
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
pub(super) mod tests {
    use tidegate_core::{BreakerConfig, BreakerState, Ratio};
    use tidegate_policy::{BreakerPlan, BreakerScope, EjectPlan, ResiliencePlan};
    use tidegate_store::ManualClock;

    use super::*;

    #[test]
    fn server_url_is_parsed_and_invalid_ones_are_rejected() {
        let server = Server::parse("http://10.0.0.1:3000").unwrap();
        assert_eq!((server.addr.as_str(), server.protocol), ("10.0.0.1:3000", ServerProtocol::Http1));
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
        let old = group(&["http://a:1", "http://b:1"], ResiliencePlan::default()).0;
        old.servers[1].set_healthy(false, Timestamp::ZERO);
        let mut new = group(&["http://b:1", "http://c:1"], ResiliencePlan::default()).0;
        new.adopt(&old);
        assert!(!new.servers[0].is_healthy());
        assert!(new.servers[1].is_healthy());
    }

    pub(in crate::upstream) fn group(
        servers: &[&str],
        resilience: ResiliencePlan,
    ) -> (UpstreamGroup, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        let plan = UpstreamPlan {
            name: "api".to_owned(),
            servers: servers.iter().map(|&url| url.to_owned()).collect(),
            balance: Balance::RoundRobin,
            health: None,
            resilience,
        };
        let counts = tidegate_telemetry::Metrics::new(1, Timestamp::ZERO).upstream("api");
        let shared = Arc::clone(&clock) as Arc<dyn Clock>;
        (UpstreamGroup::new(&plan, counts, &shared, &ResourceLimits::default()).unwrap(), clock)
    }

    /// Five failures in a row. Returns for how many seconds the server is ejected.
    fn fail(group: &UpstreamGroup, index: usize) -> Option<u64> {
        let ejected = (0..5)
            .filter_map(|_| group.record_outcome(index, CallOutcome::Failure, Evidence::default()))
            .last();
        ejected.map(TimeSpan::as_secs_ceil)
    }

    fn eject(percent: u32) -> ResiliencePlan {
        let eject = EjectPlan { at_most: Ratio::from_percent(percent), ..EjectPlan::default() };
        ResiliencePlan { eject: Some(eject), ..ResiliencePlan::default() }
    }

    pub(in crate::upstream) const URLS: [&str; 5] =
        ["http://a:1", "http://b:1", "http://c:1", "http://d:1", "http://e:1"];

    #[test]
    fn ejected_servers_are_at_most_their_share_rounded_down() {
        for (servers, percent, most) in
            [(1, 100, 0), (2, 50, 1), (3, 50, 1), (5, 50, 2), (5, 100, 4), (5, 0, 0)]
        {
            let (group, _) = group(&URLS[..servers], eject(percent));
            let ejected = (0..servers).filter(|&index| fail(&group, index).is_some()).count();
            assert_eq!(ejected, most, "{servers} servers, {percent} %");
        }
    }

    #[test]
    fn ejected_server_returns_and_another_can_be_ejected() {
        let (group, clock) = group(&URLS[..2], ResiliencePlan::default());
        assert_eq!(fail(&group, 0), Some(10));
        assert_eq!(fail(&group, 1), None, "half of the servers are ejected");
        clock.advance(TimeSpan::from_secs(10));
        assert_eq!(group.servers[0].ejected_for(clock.now()), None);
        assert_eq!(fail(&group, 1), Some(10));
    }

    #[test]
    fn reload_keeps_ejections_and_budget_but_not_too_many_ejections() {
        let (old, clock) = group(&URLS[..4], ResiliencePlan::default());
        assert_eq!((fail(&old, 0), fail(&old, 1)), (Some(10), Some(10)));
        let spent = std::iter::from_fn(|| old.resilience.budget.try_withdraw()).take(7);
        spent.for_each(tidegate_tower::retry::RetryPermit::spend);
        let mut same = group(&URLS[..4], ResiliencePlan::default()).0;
        same.adopt(&old);
        assert!(same.servers[..2].iter().all(|server| server.ejected_for(clock.now()).is_some()));
        assert_eq!(same.resilience.budget.remaining(), 3);
        let mut fewer = group(&URLS[..2], ResiliencePlan::default()).0;
        fewer.adopt(&same);
        let ejected =
            || fewer.servers.iter().filter(|server| server.ejected_for(clock.now()).is_some()).count();
        assert_eq!(ejected(), 2, "the reload is not complete");
        fewer.limit_ejections();
        assert_eq!(ejected(), 1, "half of two");
    }

    #[test]
    fn reload_with_the_same_breaker_keeps_its_state_and_with_another_does_not() {
        let plan = |failures| {
            let config = BreakerConfig { failures: Some(failures), ..BreakerConfig::default() };
            let breaker = Some(BreakerPlan { config, scope: BreakerScope::Server });
            ResiliencePlan { breaker, ..ResiliencePlan::default() }
        };
        let state =
            |group: &UpstreamGroup, index| group.resilience.breakers.of_server(index).unwrap().state();
        let old = group(&URLS[..2], plan(5)).0;
        old.resilience.breakers.of_server(1).unwrap().breaker().force_open();
        let mut moved = group(&[URLS[1], URLS[2]], plan(5)).0;
        moved.adopt(&old);
        assert_eq!((state(&moved, 0), state(&moved, 1)), (BreakerState::ForcedOpen, BreakerState::Closed));
        let mut changed = group(&URLS[..2], plan(6)).0;
        changed.adopt(&old);
        assert_eq!(state(&changed, 1), BreakerState::Closed);
    }
}
