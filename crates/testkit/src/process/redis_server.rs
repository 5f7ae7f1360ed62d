//! A real Redis.

use std::net::SocketAddr;
use std::process::Command;

use super::Process;
use crate::port::free_address;

/// A `redis-server` on a free loopback port that keeps nothing on disk.
#[derive(Debug)]
pub struct RedisServer {
    address: SocketAddr,
    _process: Process,
}

impl RedisServer {
    /// Starts a server and waits until it says that it is ready.
    pub fn start() -> Self {
        // Another process may take the port between our look and Redis' bind: look again.
        (0..5).find_map(|_| Self::try_start()).expect("redis-server found no free port in five tries")
    }

    fn try_start() -> Option<Self> {
        let address = free_address();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no"]);
        let process = Process::start(&mut command, "`cargo xtask setup` installs it on Debian and Ubuntu");
        process.find_output(|line| line.contains("Ready to accept connections").then_some(()))?;
        Some(Self { address, _process: process })
    }

    /// Where clients connect to.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}
