//! A real Redis.

use std::net::SocketAddr;
use std::process::Command;

use super::Process;
use super::redis_command::send_command;
use crate::certificate::Certificate;
use crate::folder::Folder;
use crate::port::free_address;

const HINT: &str = "`cargo xtask setup` installs it on Debian and Ubuntu";

/// A `redis-server` on a free loopback port. Its port stays the same when it is restarted.
#[derive(Debug)]
pub struct RedisServer {
    address: SocketAddr,
    options: RedisOptions,
    folder: Folder,
    process: Option<Process>,
}

/// How a server is started. By default it keeps nothing on disk and needs no login.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// TLS with this certificate, which is the only one that the server trusts: clients must present it too.
    pub tls: Option<Certificate>,
    /// An ACL user with a password and its rules, such as `~* &* +@all`. The default user is disabled.
    pub user: Option<(String, String, String)>,
    /// More arguments of the command line.
    pub arguments: Vec<String>,
}

impl RedisServer {
    /// Starts a server and waits until it says that it is ready.
    pub fn start() -> Self {
        Self::with(&RedisOptions::default())
    }

    /// The same with options.
    pub fn with(options: &RedisOptions) -> Self {
        // Another process may take the port between our look and Redis' bind: look again.
        (0..20)
            .find_map(|_| Self::try_with(options))
            .expect("redis-server found no free port in twenty tries")
    }

    /// The same with a port that may be taken meanwhile; then there is no server.
    pub(super) fn try_with(options: &RedisOptions) -> Option<Self> {
        let (address, folder) = (free_address(), Folder::new());
        let mut server = Self { address, options: options.clone(), folder, process: None };
        server.process = Some(server.try_start()?);
        Some(server)
    }

    fn try_start(&self) -> Option<Process> {
        let port = self.address.port().to_string();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(self.folder.root());
        if let Some(certificate) = &self.options.tls {
            self.folder.write("server.pem", &certificate.chain);
            self.folder.write("server.key", &certificate.key);
            command.args(["--port", "0", "--tls-port", &port]);
            command.args(["--tls-cert-file", &self.folder.text_path("server.pem")]);
            command.args(["--tls-key-file", &self.folder.text_path("server.key")]);
            command.args(["--tls-ca-cert-file", &self.folder.text_path("server.pem")]);
        } else {
            command.args(["--port", &port]);
        }
        if let Some((name, password, rules)) = &self.options.user {
            let users = format!("user default off\nuser {name} on >{password} {rules}\n");
            self.folder.write("users.acl", users);
            command.args(["--aclfile", &self.folder.text_path("users.acl")]);
        }
        command.args(&self.options.arguments);
        let process = Process::start(&mut command, HINT);
        process.find_output(|line| line.contains("Ready to accept connections").then_some(()))?;
        Some(process)
    }

    /// Where clients connect to.
    pub fn url(&self) -> String {
        let scheme = if self.options.tls.is_some() { "rediss" } else { "redis" };
        let login = self.options.user.as_ref();
        let login = login.map_or(String::new(), |(name, password, _)| format!("{name}:{password}@"));
        format!("{scheme}://{login}{}", self.address)
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it without warning (SIGKILL). Nothing is on disk, so all data is lost.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again at the same port, without data.
    pub fn restart(&mut self) {
        self.process = None;
        let process = (0..5).find_map(|_| self.try_start());
        self.process = Some(process.expect("redis-server got its port back within five tries"));
    }

    /// Stops it: it keeps its connections and its data, but does nothing (SIGSTOP).
    pub fn stop(&self) {
        self.signal("-STOP");
    }

    /// Continues it after [`Self::stop`].
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, name: &str) {
        self.process.as_ref().expect("a running server").signal(name);
    }

    /// Sends a command without a login or TLS. Returns the reply as text, the items of a list on a line each.
    pub fn command(&self, arguments: &[&str]) -> String {
        send_command(self.address, arguments).expect("a reply from Redis")
    }
}
