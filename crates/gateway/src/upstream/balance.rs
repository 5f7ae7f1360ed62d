//! LogSampling server takes a request.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_policy::Balance;

use super::server::{Server, UpstreamGroup};

/// Points of each server on the ring: removing one moves its share and hardly anything else.
const POINTS: u64 = 64;

/// Where a client is on the hash ring of an upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StickyKey(u64);

impl UpstreamGroup {
    /// The position of a client on the ring. `client` is called only if requests stick to servers.
    pub(crate) fn sticky_key<C: Hash>(&self, client: impl FnOnce() -> C) -> StickyKey {
        let sticks = self.balance == Balance::Sticky && self.servers.len() > 1;
        StickyKey(if sticks { hash(&client()) } else { 0 })
    }

    /// A server for a request of the client with `key`, not one in `tried`; a healthy one if there is any. If none is
    /// healthy all may be asked: health checks can be wrong, and refusing everybody is worse.
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
                // The better of two random ones: nearly as good as the best of all, and no server gets all new requests.
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

/// Servers on a hash ring; a client is served by the next one after its position.
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

    /// Servers in ring order from a client's position, some of them more than once.
    fn walk(&self, StickyKey(here): StickyKey) -> impl Iterator<Item = usize> {
        let start = self.points.partition_point(|(point, _)| *point < here);
        self.points[start..].iter().chain(&self.points[..start]).map(|(_, server)| *server)
    }
}

/// The same on every node and after every start: its keys are fixed.
fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn upstream(balance: Balance, servers: u32) -> UpstreamGroup {
        let servers: Vec<_> = (0..servers).map(|n| format!("http://10.0.0.{n}:80")).collect();
        let plan = tidegate_policy::Upstream { name: "api".to_owned(), servers, balance, health: None };
        let metrics = tidegate_telemetry::Metrics::new(1, tidegate_core::Timestamp::ZERO);
        UpstreamGroup::new(&plan, metrics.upstream("api")).unwrap()
    }

    fn chosen(upstream: &UpstreamGroup, client: &[u8]) -> String {
        upstream.choose(upstream.sticky_key(|| client), &[]).unwrap().url.clone()
    }

    #[test]
    fn in_turn_everybody_gets_the_same_share() {
        let upstream = upstream(Balance::RoundRobin, 3);
        let mut counts = HashMap::new();
        for _ in 0..300 {
            *counts.entry(chosen(&upstream, b"")).or_insert(0) += 1;
        }
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [100, 100, 100]);
    }

    #[test]
    fn an_unhealthy_server_is_left_out_unless_all_are() {
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
    fn the_less_loaded_of_two_is_chosen() {
        let upstream = upstream(Balance::LeastLoaded, 2);
        let _busy = upstream.servers[0].begin();
        assert!((0..1_000).all(|_| chosen(&upstream, b"") == upstream.servers[1].url));
    }

    #[test]
    fn the_busiest_of_many_is_never_chosen_and_all_others_are() {
        let upstream = upstream(Balance::LeastLoaded, 5);
        let _busy: Vec<_> = (0..10).map(|_| upstream.servers[0].begin()).collect();
        let mut counts = HashMap::new();
        for _ in 0..1_000 {
            *counts.entry(chosen(&upstream, b"")).or_insert(0) += 1;
        }
        assert_eq!((counts.len(), counts.get(&upstream.servers[0].url)), (4, None));
    }

    #[test]
    fn a_client_whose_server_cannot_be_reached_goes_where_it_would_if_that_had_left() {
        let (all, left) = (upstream(Balance::Sticky, 4), upstream(Balance::Sticky, 4));
        left.servers[2].set_healthy(false);
        let tried = [Arc::as_ptr(&all.servers[2])];
        for n in 0..1_000_u32 {
            let key = all.sticky_key(|| n.to_be_bytes());
            let (passed_over, without) = (all.choose(key, &tried), left.choose(key, &[]));
            assert_eq!(passed_over.unwrap().url, without.unwrap().url);
        }
    }

    #[test]
    fn a_client_sticks_and_a_leaving_server_moves_only_its_own() {
        let (four, mut three) = (upstream(Balance::Sticky, 4), upstream(Balance::Sticky, 4));
        three.servers[2].set_healthy(false);
        three.adopt(&upstream(Balance::Sticky, 0));
        let (mut moved, mut of_the_leaver) = (0, 0);
        for n in 0..10_000_u32 {
            let client = n.to_be_bytes();
            let (before, after) = (chosen(&four, &client), chosen(&three, &client));
            assert_eq!(before, chosen(&four, &client));
            of_the_leaver += u32::from(before == four.servers[2].url);
            moved += u32::from(before != after);
        }
        assert_eq!(moved, of_the_leaver);
        assert!((1_500..3_500).contains(&moved), "about a quarter, {moved}");
    }
}
