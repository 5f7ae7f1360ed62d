//! Which server takes a request.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_policy::Balance;

use super::server::{Server, Upstream};

/// So many points of each server on the ring: one leaving moves its share and hardly anything else.
const POINTS: u64 = 64;

impl Upstream {
    /// A server for a request of `client`, not one in `tried`; a healthy one if there is any. If none is
    /// healthy all may be asked: health checks can be wrong, and refusing everybody is worse.
    pub(crate) fn choose(&self, client: &[u8], tried: &[*const Server]) -> Option<&Arc<Server>> {
        let untried = |server: &&Arc<Server>| !tried.contains(&Arc::as_ptr(server));
        let healthy = |server: &&Arc<Server>| untried(server) && server.is_healthy();
        self.choose_among(client, &healthy).or_else(|| self.choose_among(client, &untried))
    }

    fn choose_among(&self, client: &[u8], may: &dyn Fn(&&Arc<Server>) -> bool) -> Option<&Arc<Server>> {
        if let [only] = self.servers.as_slice() {
            return Some(only).filter(may);
        }
        match self.balance {
            Balance::RoundRobin => self.in_turn(may),
            Balance::LeastLoaded => {
                // The better of two random ones: nearly as good as the best of all, and nobody is stormed.
                let (first, second) = (self.at_random(may)?, self.at_random(may)?);
                Some(if second.load() < first.load() { second } else { first })
            }
            Balance::Sticky => self.ring.walk(client).map(|server| &self.servers[server]).find(may),
        }
    }

    fn in_turn(&self, may: &dyn Fn(&&Arc<Server>) -> bool) -> Option<&Arc<Server>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.servers.len();
        (0..count).map(|next| &self.servers[turn.wrapping_add(next) % count]).find(may)
    }

    fn at_random(&self, may: &dyn Fn(&&Arc<Server>) -> bool) -> Option<&Arc<Server>> {
        let start = fastrand::usize(..self.servers.len().max(1));
        let count = self.servers.len();
        (0..count).map(|next| &self.servers[(start + next) % count]).find(may)
    }
}

/// Servers on a ring of hashes; a client is served by the next one from where it stands.
#[derive(Debug)]
pub(super) struct Ring {
    points: Vec<(u64, usize)>,
}

impl Ring {
    pub(super) fn of<'a>(servers: impl Iterator<Item = &'a str>) -> Self {
        let mut points: Vec<_> = servers
            .enumerate()
            .flat_map(|(server, url)| (0..POINTS).map(move |point| (place(&(url, point)), server)))
            .collect();
        points.sort_unstable();
        Self { points }
    }

    /// Servers in the order in which `client` meets them, some of them more than once.
    fn walk(&self, client: &[u8]) -> impl Iterator<Item = usize> {
        let here = place(&client);
        let start = self.points.partition_point(|(point, _)| *point < here);
        self.points[start..].iter().chain(&self.points[..start]).map(|(_, server)| *server)
    }
}

/// The same on every node and after every start: its keys are fixed.
fn place(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn upstream(balance: Balance, servers: u32) -> Upstream {
        let servers: Vec<_> = (0..servers).map(|n| format!("http://10.0.0.{n}:80")).collect();
        let plan = tidegate_policy::Upstream { name: "api".to_owned(), servers, balance, health: None };
        let metrics = tidegate_telemetry::Metrics::new(1, tidegate_core::Timestamp::ZERO);
        Upstream::new(&plan, metrics.upstream("api")).unwrap()
    }

    fn chosen(upstream: &Upstream, client: &[u8]) -> String {
        upstream.choose(client, &[]).unwrap().url.clone()
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
            upstream.servers.iter().for_each(|server| server.set_healthy(false));
            assert!(upstream.choose(b"", &[]).is_some(), "{balance:?}");
        }
    }

    #[test]
    fn the_less_loaded_gets_more() {
        let upstream = upstream(Balance::LeastLoaded, 2);
        let _busy: Vec<_> = (0..10).map(|_| upstream.servers[0].begin()).collect();
        let to_idle = (0..1_000).filter(|_| chosen(&upstream, b"") == upstream.servers[1].url).count();
        assert!(to_idle > 650, "three quarters are expected, {to_idle} were");
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
