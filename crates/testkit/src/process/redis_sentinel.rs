//! A real primary with a replica, watched by Sentinels.

use std::net::SocketAddr;
use std::process::Command;

use super::Process;
use super::redis_command::send_command;
use super::redis_server::{RedisOptions, RedisServer};
use crate::folder::Folder;
use crate::port::free_address;
use crate::wait::eventually_blocking;

/// The name of the service.
const SERVICE: &str = "main";
const SENTINELS: usize = 3;

/// A primary, a replica and three Sentinels, which replace a primary after 500 ms without a reply.
#[derive(Debug)]
pub struct RedisSentinel {
    /// The first primary and its replica.
    pub nodes: [RedisServer; 2],
    sentinels: Vec<(SocketAddr, Process)>,
    _folder: Folder,
}

impl RedisSentinel {
    /// Starts all of them and waits until the Sentinels know each other and the replica.
    pub fn start() -> Self {
        let primary = RedisServer::with(options(&[]));
        let port = primary.address().port().to_string();
        let replica = RedisServer::with(options(&["--replicaof", "127.0.0.1", &port]));
        let is_linked = || replica.command(&["INFO", "replication"]).contains("master_link_status:up");
        eventually_blocking("a linked replica", is_linked);
        let folder = Folder::new();
        let sentinels = (0..SENTINELS).map(|number| start_sentinel(&folder, number, &port)).collect();
        let started = Self { nodes: [primary, replica], sentinels, _folder: folder };
        eventually_blocking("Sentinels that know each other", || started.is_ready());
        started
    }

    fn is_ready(&self) -> bool {
        self.sentinels.iter().all(|(address, _)| {
            let Ok(reply) = send_command(*address, &["SENTINEL", "MASTER", SERVICE]) else { return false };
            reply.contains("num-slaves\n1") && reply.contains("num-other-sentinels\n2")
        })
    }

    /// The URL with the addresses of all Sentinels.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(|(address, _)| address.to_string()).collect();
        format!("redis-sentinel://{}/{SERVICE}", addresses.join(","))
    }

    /// Makes the replica the primary, as an operator does. Returns when the first Sentinel says so.
    pub fn fail_over(&self) {
        let (address, _) = &self.sentinels[0];
        let reply = send_command(*address, &["SENTINEL", "FAILOVER", SERVICE]).expect("a reply");
        assert_eq!(reply, "OK");
        let port = self.nodes[1].address().port().to_string();
        eventually_blocking("a new primary", || {
            let reply = send_command(*address, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
            reply.is_ok_and(|reply| reply.ends_with(&port))
        });
    }
}

fn options(arguments: &[&str]) -> RedisOptions {
    let mut arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    arguments.extend(["--repl-diskless-sync-delay".to_owned(), "0".to_owned()]);
    RedisOptions { arguments, ..RedisOptions::default() }
}

fn start_sentinel(folder: &Folder, number: usize, primary: &str) -> (SocketAddr, Process) {
    let start = |_| {
        let (address, name) = (free_address(), format!("sentinel-{number}.conf"));
        let config = format!(
            "bind 127.0.0.1\nport {}\nsentinel monitor {SERVICE} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout {SERVICE} 2000\n",
            address.port()
        );
        folder.write(&name, config);
        let mut command = Command::new("redis-server");
        command.arg(folder.path(&name)).arg("--sentinel");
        let process = Process::start(&mut command, "`cargo xtask setup` installs it on Debian and Ubuntu");
        process.find_output(|line| line.contains("+monitor").then_some(()))?;
        Some((address, process))
    };
    (0..5).find_map(start).expect("a Sentinel found no free port in five tries")
}
