//! Chooses the server for a request.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_policy::Balance;

use super::server::{Server, UpstreamGroup};

/// Points of each server on the ring. Removing a server moves only the clients of that server.
const POINTS: u64 = 64;

/// The position of a client on the hash ring of an upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StickyKey(u64);

impl UpstreamGroup {
    /// The position of a client on the ring. `client` is called only for sticky balancing.
    pub(crate) fn sticky_key<C: Hash>(&self, client: impl FnOnce() -> C) -> StickyKey {
        let sticks = self.balance == Balance::Sticky && self.servers.len() > 1;
        StickyKey(if sticks { hash(&client()) } else { 0 })
    }

    /// A server for the client with `key` that is not in `tried`, preferably a healthy one. If none is healthy, any server is
    /// chosen: health checks can be wrong, and rejecting all requests is worse.
    pub(crate) fn choose(&self, key: StickyKey, tried: &[*const Server]) -> Option<&Arc<Server>> {
        let untried = |server: &&Arc<Server>| !tried.contains(&Arc::as_ptr(server));
        let healthy = |server: &&Arc<Server>| untried(server) && server.is_healthy();
        self.choose_among(key, &healthy).or_else(|| self.choose_among(key, &untried))
    }

    fn choose_among(
        &self,
        key: StickyKey,
        is_eligible: &dyn Fn(&&Arc<Server>) -> bool,
    ) -> Option<&Arc<Server>> {
        if let [only] = self.servers.as_slice() {
            return Some(only).filter(is_eligible);
        }
        match self.balance {
            Balance::RoundRobin => self.round_robin(is_eligible),
            Balance::LeastLoaded => {
                // The less loaded of two random servers: nearly as good as the best of all, and no server gets all new requests.
                let first = self.random(is_eligible)?;
                let second = self.random(&|server| is_eligible(server) && !Arc::ptr_eq(server, first));
                Some(second.filter(|second| second.load() < first.load()).unwrap_or(first))
            }
            Balance::Sticky => self.ring.walk(key).map(|server| &self.servers[server]).find(is_eligible),
        }
    }

    fn round_robin(&self, is_eligible: &dyn Fn(&&Arc<Server>) -> bool) -> Option<&Arc<Server>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.servers.len();
        (0..count).map(|next| &self.servers[turn.wrapping_add(next) % count]).find(is_eligible)
    }

    fn random(&self, is_eligible: &dyn Fn(&&Arc<Server>) -> bool) -> Option<&Arc<Server>> {
        let start = fastrand::usize(..self.servers.len().max(1));
        let count = self.servers.len();
        (0..count).map(|next| &self.servers[(start + next) % count]).find(is_eligible)
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

    use super::*;

    fn upstream(balance: Balance, servers: u32) -> UpstreamGroup {
        let servers: Vec<_> = (0..servers).map(|n| format!("http://10.0.0.{n}:80")).collect();
        let plan = tidegate_policy::UpstreamPlan {
            name: "api".to_owned(),
            servers,
            balance,
            health: None,
            resilience: tidegate_policy::ResiliencePlan::default(),
        };
        let metrics = tidegate_telemetry::Metrics::new(1, tidegate_core::Timestamp::ZERO);
        UpstreamGroup::new(&plan, metrics.upstream("api")).unwrap()
    }

    fn chosen(upstream: &UpstreamGroup, client: &[u8]) -> String {
        upstream.choose(upstream.sticky_key(|| client), &[]).unwrap().url.clone()
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
            upstream.servers[1].set_healthy(false);
            assert!((0..100_u32).all(|n| chosen(&upstream, &n.to_be_bytes()) != upstream.servers[1].url));
            for server in &upstream.servers {
                server.set_healthy(false);
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
        removed.servers[2].set_healthy(false);
        let tried = [Arc::as_ptr(&all.servers[2])];
        for n in 0..1_000_u32 {
            let key = all.sticky_key(|| n.to_be_bytes());
            let (skipped, without) = (all.choose(key, &tried), removed.choose(key, &[]));
            assert_eq!(skipped.unwrap().url, without.unwrap().url);
        }
    }

    #[test]
    fn sticky_removed_server_moves_only_its_own_clients() {
        let (four, mut three) = (upstream(Balance::Sticky, 4), upstream(Balance::Sticky, 4));
        three.servers[2].set_healthy(false);
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
