//! A real redis-server on a free loopback port, for as long as a test holds it.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

pub(crate) struct RedisServer {
    process: Child,
    port: u16,
}

impl RedisServer {
    /// Starts a server and waits until it says that it is ready.
    pub(crate) fn start() -> Self {
        // Another process may take the port between our look and Redis' bind: look again.
        (0..5).find_map(|_| Self::try_start()).expect("redis-server found no free port in five tries")
    }

    fn try_start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).ok()?.port();
        let mut process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server starts; `cargo xtask test` installs it on Debian and Ubuntu");
        let output = BufReader::new(process.stdout.take().expect("its output is piped"));
        let server = Self { process, port };
        // Without a reader Redis would stop at a full pipe; it logs a few lines only.
        let ready =
            output.lines().map_while(Result::ok).any(|line| line.contains("Ready to accept connections"));
        ready.then_some(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // A server that is gone already needs no stopping.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
