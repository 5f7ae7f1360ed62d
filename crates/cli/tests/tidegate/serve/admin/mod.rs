//! The admin API and the admin commands of a running gateway.

mod bans;
mod breakers;
mod client;
mod crash;
mod explain;
mod gateway_endpoints;
mod limits;
mod outages;
mod request_checks;
mod stalled_connections;
mod startup;

use tidegate_testkit::client::request;
use tidegate_testkit::message::Response;
use tidegate_testkit::process::{PolicyFile, Tidegate};
use tidegate_testkit::server::echo;

use crate::program::{run, serve};

/// A gateway in front of a server, with an admin API on a free port.
pub(crate) struct AdminGateway {
    pub(crate) server: Tidegate,
    pub(crate) policy: PolicyFile,
    /// The address of the admin API.
    pub(crate) admin: String,
    pub(crate) token: String,
}

/// Five requests an hour for each user, and for each address without one.
pub(crate) fn policy_text(rest: &str) -> String {
    format!(
        "upstreams: {{ api: {{ servers: ['http://{}'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         admin: {{ listen: '127.0.0.1:0' }}\n\
         clients: {{ identify_by: [user, ip], user: {{ header: X-User }}, ip: {{ trusted_proxies: 127.0.0.1 }} }}\n\
         rate_limits: {{ default: {{ requests: 5, window: 1h, algorithm: sliding_window_log }} }}\n{rest}",
        echo()
    )
}

impl AdminGateway {
    pub(crate) fn start(rest: &str) -> Self {
        Self::serve(PolicyFile::new(&policy_text(rest)))
    }

    pub(crate) fn serve(policy: PolicyFile) -> Self {
        let server = serve(&["--config", &policy.path()]);
        let (admin, token) = admin_of(&server, &policy);
        Self { server, policy, admin, token }
    }

    /// The same gateway in a new process, after this one has ended.
    pub(crate) fn restart(self) -> Self {
        let Self { server, policy, .. } = self;
        drop(server);
        Self::serve(policy)
    }

    /// Sends an admin request with the token.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Response {
        let token = format!("Authorization: Bearer {}\r\n", self.token);
        request(&self.admin, method, path, &token, body)
    }

    /// The status that a client gets.
    pub(super) fn get(&self, headers: &str) -> u16 {
        request(&self.server.address, "GET", "/", headers, "").status
    }

    /// Runs a `tidegate` command with the policy. Returns whether it succeeds, its output and its errors.
    pub(crate) fn command(&self, args: &[&str]) -> (bool, String, String) {
        let url = format!("http://{}", self.admin);
        let policy = self.policy.path();
        let output = run(&[args, &["--config", &policy, "--admin", &url]].concat());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    }
}

fn admin_of(server: &Tidegate, policy: &PolicyFile) -> (String, String) {
    let line = server.startup_output.lines().find(|line| line.starts_with("  admin ")).unwrap();
    let (_, rest) = line.split_once("http://").unwrap();
    let (admin, _) = rest.split_once(';').unwrap();
    let token = std::fs::read_to_string(policy.path().replace(".yaml", ".state/admin.token")).unwrap();
    (admin.to_owned(), token.trim().to_owned())
}
