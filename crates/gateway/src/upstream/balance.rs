//! Chooses the server for a request.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;

use tidegate_policy::{Balance, FallbackPlan};

use super::ejection::TrafficShare;
use super::server::{Server, UpstreamGroup};

/// Points of each server on the ring. Removing a server moves only the clients of that server.
const POINTS: u64 = 64;

/// A hash of a client: its position on the hash ring of an upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StickyKey(u64);

impl StickyKey {
    /// The client, for the adaptive limit of the upstream.
    pub(crate) fn client(self) -> u64 {
        self.0
    }
}

impl UpstreamGroup {
    /// The position of a client on the ring. `client` is called only if sticky balancing or load shedding may need it, here or
    /// in the upstream that replaces this one.
    pub(crate) fn sticky_key<C: Hash>(&self, client: impl FnOnce() -> C) -> StickyKey {
        let sticks = self.balance == Balance::Sticky && self.servers.len() > 1;
        let resilience = &self.resilience;
        let has_fallback = matches!(resilience.plan.fallback, Some(FallbackPlan::Upstream(_)));
        let is_needed = sticks || has_fallback || resilience.shed.is_some();
        StickyKey(if is_needed { hash(&client()) } else { 0 })
    }

    /// A server for the client with `key` that is not in `excluded`: one that is healthy and not ejected, if there is one. A
    /// server that has recovered is chosen less often at first. If no server is left that way, any is chosen: health checks
    /// can be wrong, and rejecting all requests is worse.
    pub(super) fn choose(&self, key: StickyKey, excluded: &[usize]) -> Option<usize> {
        let is_left = |index: usize| !excluded.contains(&index);
        self.choose_among(key, &|index| is_left(index) && self.takes_turn(index, key))
            .or_else(|| self.choose_among(key, &|index| is_left(index) && self.is_available(index)))
            .or_else(|| self.choose_among(key, &is_left))
    }

    /// A server for another attempt, preferably one whose latest request has not failed.
    pub(super) fn choose_again(&self, key: StickyKey, tried: &[usize]) -> Option<usize> {
        self.choose_working(key, tried).or_else(|| self.choose(key, tried))
    }

    /// A server that was not tried, is available and whose latest request has not failed.
    pub(super) fn choose_working(&self, key: StickyKey, tried: &[usize]) -> Option<usize> {
        let works = |index: usize| self.is_available(index) && !self.servers[index].ejection.is_failing();
        let is_eligible = |index: usize| !tried.contains(&index) && works(index);
        match self.balance {
            // Another attempt takes no turn: otherwise the next request would start with the server that has just failed.
            Balance::RoundRobin => self.random(&is_eligible),
            Balance::LeastLoaded | Balance::Sticky => self.choose_among(key, &is_eligible),
        }
    }

    /// Whether the server is healthy and not ejected.
    fn is_available(&self, index: usize) -> bool {
        let server = &self.servers[index];
        server.is_healthy() && self.share(server) != TrafficShare::Ejected
    }

    /// The same, and the request of `key` falls into its share while it starts slowly.
    fn takes_turn(&self, index: usize, key: StickyKey) -> bool {
        let server = &self.servers[index];
        server.is_healthy()
            && match self.share(server) {
                TrafficShare::Full => true,
                TrafficShare::Ejected => false,
                // A client returns to its server once, and stays.
                TrafficShare::SlowStart(share) if self.balance == Balance::Sticky => key.0 % 1_000 < share,
                TrafficShare::SlowStart(share) => server.ejection.takes_turn(share),
            }
    }

    fn share(&self, server: &Server) -> TrafficShare {
        match server.ejection.share(|| self.clock.now()) {
            TrafficShare::Ejected if self.resilience.plan.eject.is_none() => TrafficShare::Full,
            share => share,
        }
    }

    fn choose_among(&self, key: StickyKey, is_eligible: &dyn Fn(usize) -> bool) -> Option<usize> {
        if self.servers.len() == 1 {
            return Some(0).filter(|&only| is_eligible(only));
        }
        match self.balance {
            Balance::RoundRobin => self.round_robin(is_eligible),
            Balance::LeastLoaded => {
                // The less loaded of two random servers: nearly as good as the best of all, and no server gets all new requests.
                let first = self.random(is_eligible)?;
                let second = self.random(&|server| server != first && is_eligible(server));
                let load = |server: usize| self.servers[server].load();
                Some(second.filter(|&second| load(second) < load(first)).unwrap_or(first))
            }
            Balance::Sticky => self.ring.walk(key).find(|&server| is_eligible(server)),
        }
    }

    fn round_robin(&self, is_eligible: &dyn Fn(usize) -> bool) -> Option<usize> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.servers.len();
        (0..count).map(|next| turn.wrapping_add(next) % count).find(|&server| is_eligible(server))
    }

    fn random(&self, is_eligible: &dyn Fn(usize) -> bool) -> Option<usize> {
        let start = fastrand::usize(..self.servers.len().max(1));
        let count = self.servers.len();
        (0..count).map(|next| (start + next) % count).find(|&server| is_eligible(server))
    }
}

/// A consistent hash ring of servers; a client is served by the next server after its position.
#[derive(Debug)]
pub(super) struct HashRing {
    points: Vec<(u64, usize)>,
}

impl HashRing {
    pub(super) fn new<'a>(servers: impl Iterator<Item = &'a str>) -> Self {
        let mut points: Vec<_> = servers
            .enumerate()
            .flat_map(|(server, url)| (0..POINTS).map(move |point| (hash(&(url, point)), server)))
            .collect();
        points.sort_unstable();
        Self { points }
    }

    /// Servers in ring order from a client's position; servers repeat.
    fn walk(&self, StickyKey(position): StickyKey) -> impl Iterator<Item = usize> {
        let start = self.points.partition_point(|(point, _)| *point < position);
        self.points[start..].iter().chain(&self.points[..start]).map(|(_, server)| *server)
    }
}

/// A hash with fixed keys: the same on every node and after every start.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use tidegate_core::{CallOutcome, TimeSpan, Timestamp};
    use tidegate_store::{Clock, ManualClock};

    use super::*;
    use crate::resource_limits::ResourceLimits;

    fn upstream(balance: Balance, servers: u32) -> UpstreamGroup {
        upstream_at(&Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000))), balance, servers)
    }

    fn upstream_at(clock: &Arc<ManualClock>, balance: Balance, servers: u32) -> UpstreamGroup {
        let servers: Vec<_> = (0..servers).map(|n| format!("http://10.0.0.{n}:80")).collect();
        let plan = tidegate_policy::UpstreamPlan {
            name: "api".to_owned(),
            servers,
            balance,
            health: None,
            resilience: tidegate_policy::ResiliencePlan::default(),
        };
        let metrics = tidegate_telemetry::Metrics::new(1, Timestamp::ZERO);
        let clock = Arc::clone(clock) as Arc<dyn Clock>;
        UpstreamGroup::new(&plan, metrics.upstream("api"), &clock, &ResourceLimits::default()).unwrap()
    }

    fn chosen(upstream: &UpstreamGroup, client: &[u8]) -> String {
        let chosen = upstream.choose(upstream.sticky_key(|| client), &[]).unwrap();
        upstream.servers[chosen].url.clone()
    }

    /// Of 1,000 requests of different clients, those that `server` gets.
    fn share_of(upstream: &UpstreamGroup, server: usize) -> usize {
        let requests = 0..1_000_u32;
        requests.filter(|n| chosen(upstream, &n.to_be_bytes()) == upstream.servers[server].url).count()
    }

    #[test]
    fn ejected_server_gets_nothing_and_then_a_growing_share() {
        for balance in Balance::ALL {
            let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
            let upstream = upstream_at(&clock, balance, 4);
            let usual = share_of(&upstream, 2);
            for _ in 0..5 {
                upstream.record_outcome(2, CallOutcome::Failure);
            }
            assert_eq!(share_of(&upstream, 2), 0, "{balance:?}");
            let shares: Vec<_> = [10, 5, 5]
                .into_iter()
                .map(|seconds| {
                    clock.advance(TimeSpan::from_secs(seconds));
                    share_of(&upstream, 2) * 100 / usual
                })
                .collect();
            assert!((1..=25).contains(&shares[0]), "{balance:?} {shares:?}");
            assert!((30..=75).contains(&shares[1]), "{balance:?} {shares:?}");
            assert!((75..=125).contains(&shares[2]), "{balance:?} {shares:?}");
        }
    }

    #[test]
    fn recovered_server_starts_slowly_and_is_used_if_no_other_is_left() {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
        let upstream = upstream_at(&clock, Balance::RoundRobin, 2);
        upstream.servers[0].set_healthy(false, clock.now());
        assert_eq!(share_of(&upstream, 0), 0);
        upstream.servers[0].set_healthy(true, clock.now());
        let share = share_of(&upstream, 0);
        assert!((50..=110).contains(&share), "a tenth of half: {share}");
        upstream.servers[1].set_healthy(false, clock.now());
        assert_eq!(share_of(&upstream, 0), 1_000);
    }

    #[test]
    fn another_attempt_prefers_a_server_that_does_not_fail() {
        for balance in Balance::ALL {
            let upstream = upstream(balance, 3);
            upstream.record_outcome(1, CallOutcome::Failure);
            for n in 0..100_u32 {
                let key = upstream.sticky_key(|| n.to_be_bytes());
                assert_eq!(upstream.choose_again(key, &[0]), Some(2), "{balance:?}");
                assert_eq!(upstream.choose_again(key, &[0, 2]), Some(1), "{balance:?}");
                assert_eq!(upstream.choose_again(key, &[0, 1, 2]), None);
            }
        }
    }

    #[test]
    fn round_robin_servers_get_equal_shares() {
        let upstream = upstream(Balance::RoundRobin, 3);
        let mut counts = HashMap::new();
        for _ in 0..300 {
            *counts.entry(chosen(&upstream, b"")).or_insert(0) += 1;
        }
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [100, 100, 100]);
    }

    #[test]
    fn unhealthy_server_is_skipped_unless_all_are_unhealthy() {
        for balance in Balance::ALL {
            let upstream = upstream(balance, 3);
            upstream.servers[1].set_healthy(false, Timestamp::ZERO);
            assert!((0..100_u32).all(|n| chosen(&upstream, &n.to_be_bytes()) != upstream.servers[1].url));
            for server in &upstream.servers {
                server.set_healthy(false, Timestamp::ZERO);
            }
            assert!(upstream.choose(upstream.sticky_key(|| b""), &[]).is_some(), "{balance:?}");
        }
    }

    #[test]
    fn least_loaded_of_two_servers_is_chosen() {
        let upstream = upstream(Balance::LeastLoaded, 2);
        let _busy = upstream.servers[0].begin();
        assert!((0..1_000).all(|_| chosen(&upstream, b"") == upstream.servers[1].url));
    }

    #[test]
    fn most_loaded_of_many_servers_is_never_chosen() {
        let upstream = upstream(Balance::LeastLoaded, 5);
        let _busy: Vec<_> = (0..10).map(|_| upstream.servers[0].begin()).collect();
        let mut counts = HashMap::new();
        for _ in 0..1_000 {
            *counts.entry(chosen(&upstream, b"")).or_insert(0) += 1;
        }
        assert_eq!((counts.len(), counts.get(&upstream.servers[0].url)), (4, None));
    }

    #[test]
    fn sticky_client_of_unreachable_server_moves_as_if_it_were_removed() {
        let (all, removed) = (upstream(Balance::Sticky, 4), upstream(Balance::Sticky, 4));
        removed.servers[2].set_healthy(false, Timestamp::ZERO);
        for n in 0..1_000_u32 {
            let key = all.sticky_key(|| n.to_be_bytes());
            assert_eq!(all.choose(key, &[2]), removed.choose(key, &[]));
        }
    }

    #[test]
    fn sticky_removed_server_moves_only_its_own_clients() {
        let (four, mut three) = (upstream(Balance::Sticky, 4), upstream(Balance::Sticky, 4));
        three.servers[2].set_healthy(false, Timestamp::ZERO);
        three.adopt(&upstream(Balance::Sticky, 0));
        let (mut moved, mut clients_of_removed) = (0, 0);
        for n in 0..10_000_u32 {
            let client = n.to_be_bytes();
            let (before, after) = (chosen(&four, &client), chosen(&three, &client));
            assert_eq!(before, chosen(&four, &client));
            clients_of_removed += u32::from(before == four.servers[2].url);
            moved += u32::from(before != after);
        }
        assert_eq!(moved, clients_of_removed);
        assert!((1_500..3_500).contains(&moved), "about a quarter, {moved}");
    }
}
