//! A real cluster of six nodes.

use std::net::SocketAddr;

use super::redis_server::{RedisOptions, RedisServer};
use crate::port::free_address;
use crate::wait::eventually_blocking;

const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;

/// Three primaries and three replicas on free loopback ports. A node counts as failed after 500 ms.
#[derive(Debug)]
pub struct RedisCluster {
    /// The primaries first, then their replicas in the same order.
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts a cluster and waits until all of its nodes agree and replicate.
    pub fn start() -> Self {
        let started: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2 * PRIMARIES).map(|_| scope.spawn(start_node)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a node")).collect()
        });
        let (nodes, buses): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        let cluster = Self { nodes };
        cluster.connect(&buses);
        cluster
    }

    fn connect(&self, buses: &[u16]) {
        for (index, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < PRIMARIES {
                let first = (SLOTS * index / PRIMARIES).to_string();
                let last = (SLOTS * (index + 1) / PRIMARIES - 1).to_string();
                assert_eq!(node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]), "OK");
            }
            for (other, bus) in self.nodes.iter().zip(buses) {
                let port = other.address().port().to_string();
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus.to_string()]);
            }
        }
        let knows_all = |node: &RedisServer| {
            let info = node.command(&["CLUSTER", "INFO"]);
            info.contains("cluster_known_nodes:6") && info.contains("cluster_state:ok")
        };
        eventually_blocking("six nodes that know each other", || self.nodes.iter().all(knows_all));
        for (replica, primary) in self.nodes[PRIMARIES..].iter().zip(&self.nodes) {
            let id = primary.command(&["CLUSTER", "MYID"]);
            eventually_blocking("a replica", || replica.command(&["CLUSTER", "REPLICATE", &id]) == "OK");
        }
        let is_linked =
            |node: &RedisServer| node.command(&["INFO", "replication"]).contains("master_link_status:up");
        eventually_blocking("linked replicas", || self.nodes[PRIMARIES..].iter().all(is_linked));
        let counts =
            |node: &RedisServer| node.command(&["CLUSTER", "NODES"]).matches("slave").count() == PRIMARIES;
        eventually_blocking("known replicas", || self.nodes.iter().all(counts));
    }

    /// The URL with the addresses of all nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }

    /// The index of the primary that has `slot`, as the node `asked` sees it.
    pub fn primary_of(&self, slot: u16, asked: usize) -> Option<usize> {
        let reply = self.nodes[asked].command(&["CLUSTER", "NODES"]);
        let line = reply.lines().find(|line| {
            let is_primary = line.contains("master") && !line.contains("fail");
            is_primary && line.split(' ').skip(8).any(|range| contains(range, slot))
        })?;
        let address: SocketAddr = line.split(' ').nth(1)?.split('@').next()?.parse().ok()?;
        self.nodes.iter().position(|node| node.address() == address)
    }

    /// Moves `slot` with its keys from one primary to another, as `redis-cli --cluster reshard` does. `during` is called after
    /// each step.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize, mut during: impl FnMut()) {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        let (from_id, to_id) = (from.command(&["CLUSTER", "MYID"]), to.command(&["CLUSTER", "MYID"]));
        let slot = slot.to_string();
        assert_eq!(to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]), "OK");
        assert_eq!(from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]), "OK");
        during();
        let port = to.address().port().to_string();
        loop {
            let keys = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            if keys.is_empty() {
                break;
            }
            let moved = from.command(&["MIGRATE", "127.0.0.1", &port, &keys, "0", "5000"]);
            assert!(moved == "OK" || moved == "NOKEY", "{moved}");
            during();
        }
        for node in [to, from] {
            assert_eq!(node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]), "OK");
            during();
        }
    }
}

/// Whether a range of `CLUSTER NODES`, such as `0-5460` or `7`, contains a slot.
fn contains(range: &str, slot: u16) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
}

/// A node and the port of its bus.
fn start_node() -> (RedisServer, u16) {
    // Another process may take one of the two ports meanwhile: look for both again.
    (0..20)
        .find_map(|_| try_start_node())
        .expect("a node of the cluster found two free ports in twenty tries")
}

fn try_start_node() -> Option<(RedisServer, u16)> {
    let bus = free_address().port();
    let arguments =
        ["--cluster-enabled", "yes", "--cluster-node-timeout", "500", "--repl-diskless-sync-delay", "0"];
    let mut arguments: Vec<_> = arguments.map(str::to_owned).to_vec();
    arguments.extend(["--cluster-port".to_owned(), bus.to_string()]);
    let node = RedisServer::try_with(&RedisOptions { arguments, ..RedisOptions::default() })?;
    Some((node, bus))
}
