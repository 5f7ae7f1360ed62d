//! A real nginx.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use super::Process;
use crate::folder::Folder;
use crate::port::free_address;
use crate::wait::eventually_blocking;

/// An nginx on a free loopback port.
#[derive(Debug)]
pub struct Nginx {
    /// Where it listens.
    pub address: SocketAddr,
    // Dropped in this order: the process before its folder.
    process: Process,
    _folder: Folder,
}

impl Nginx {
    /// Starts nginx with this configuration, in which `FOLDER` stands for a folder of its own, `ADDRESS` for where it
    /// listens and `UPSTREAM` for the server that it forwards to.
    pub fn start(configuration: &str, upstream: SocketAddr) -> Self {
        Self::start_at(free_address(), configuration, upstream)
    }

    /// The same at this address.
    pub fn start_at(address: SocketAddr, configuration: &str, upstream: SocketAddr) -> Self {
        let folder = Folder::new();
        let configuration = configuration
            .replace("FOLDER", &folder.root().to_string_lossy())
            .replace("ADDRESS", &address.to_string())
            .replace("UPSTREAM", &upstream.to_string());
        folder.write("nginx.conf", configuration);
        let mut command = Command::new("sh");
        // Debian keeps servers where users do not look for programs.
        command.args(["-c", "PATH=$PATH:/usr/sbin exec nginx -c \"$0\""]).arg(folder.path("nginx.conf"));
        let process = Process::start(&mut command, "`cargo xtask scorecard probes` installs it");
        eventually_blocking("nginx listens", || TcpStream::connect(address).is_ok());
        Self { address, process, _folder: folder }
    }

    /// Sends a signal, such as `-STOP`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Lets it finish its requests, and returns once it has ended.
    pub fn quit(mut self) {
        self.signal("-QUIT");
        self.process.wait();
    }
}
