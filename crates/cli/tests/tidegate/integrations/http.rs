//! nginx, Caddy and HAProxy ask the decision service, with the configurations in examples/integrations/.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use tidegate_testkit::client::request;
use tidegate_testkit::folder::Folder;
use tidegate_testkit::message::Response;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{Nginx, PolicyFile, Process, Tidegate};
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::eventually_blocking;

use crate::program::{ROOT, command};

const POLICY: &str = "
clients: { identify_by: [api_key, ip], api_key: { header: X-Api-Key, verify: none } }
rate_limits:
  default: { requests: 100, window: 1h }
  endpoints:
    POST /login: { requests: 2, window: 1h }
";

/// Trusts the proxies of the tests, so the user whom they name counts.
const USER_POLICY: &str = "
clients: { identify_by: [user, ip], user: { header: X-User-Id }, ip: { trusted_proxies: [127.0.0.1/32] } }
rate_limits: { default: { requests: 2, window: 1h } }
";

/// Delays requests for longer than usual timeouts.
const DELAYING_POLICY: &str = "
rate_limits: { default: { requests: 2, window: 5s, algorithm: leaky_bucket, burst: 3 } }
";

/// What a client could send to describe another request than its own.
const FORGED: &str = "X-Original-Method: GET\r\nX-Original-URI: /\r\nX-Original-Host: other\r\nX-Real-IP: 198.51.100.1\r\n\
                      X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\nX-Forwarded-Host: other\r\n\
                      X-Forwarded-For: 198.51.100.1\r\nX-Tidegate-Token: x\r\n";

/// A decision service for a proxy, and the server behind the proxy.
struct ProxiedService {
    tidegate: Tidegate,
    _policy: PolicyFile,
    app: SocketAddr,
    /// Where the proxy is to listen.
    proxy: SocketAddr,
    folder: Folder,
}

impl ProxiedService {
    fn start() -> Self {
        Self::start_with(POLICY)
    }

    fn start_with(policy: &str) -> Self {
        let policy = PolicyFile::new(policy);
        let http = free_address().to_string();
        let tidegate =
            Tidegate::start(command().args(["serve", "--config", &policy.path(), "--http", &http]));
        Self { tidegate, _policy: policy, app: echo(), proxy: free_address(), folder: Folder::new() }
    }

    /// A file of examples/integrations/ with the addresses of this test.
    fn example(&self, name: &str) -> String {
        let path = format!("{ROOT}/examples/integrations/{name}");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.replace("127.0.0.1:8082", &self.tidegate.address)
            .replace("127.0.0.1:9000", &self.app.to_string())
            .replace("127.0.0.1:8080", &self.proxy.to_string())
            .replace("/etc/haproxy", &self.folder.root().to_string_lossy())
    }

    fn wait_until_it_listens(&self) {
        eventually_blocking("the proxy listens", || TcpStream::connect(self.proxy).is_ok());
    }

    fn send(&self, method: &str, path: &str, headers: &str) -> Response {
        // Written here, because `X-Original-Host` is not the header that `request` looks for.
        let headers = format!("Host: {}\r\n{headers}", self.proxy);
        request(&self.proxy.to_string(), method, path, &headers, "")
    }

    fn nginx(&self) -> Nginx {
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path FOLDER/{name};\n"))
            .concat();
        let configuration = format!(
            "daemon off;\nworker_processes 1;\npid FOLDER/nginx.pid;\nerror_log FOLDER/error.log;\nevents {{}}\n\
             http {{\naccess_log off;\n{temporary}{}\n}}\n",
            self.example("nginx/tidegate.conf")
        );
        Nginx::start_at(self.proxy, &configuration, self.app)
    }

    fn caddy(&self) -> Process {
        self.folder.write("Caddyfile", format!("{{\n\tadmin off\n}}\n{}", self.example("caddy/Caddyfile")));
        let mut caddy = Command::new("caddy");
        caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(self.folder.path("Caddyfile"));
        caddy.env("XDG_CONFIG_HOME", self.folder.root()).env("XDG_DATA_HOME", self.folder.root());
        let caddy = Process::start(&mut caddy, "`cargo xtask setup` installs it");
        self.wait_until_it_listens();
        caddy
    }

    fn haproxy(&self) -> Process {
        self.folder.write("tidegate.lua", self.example("haproxy/tidegate.lua"));
        self.folder.write("haproxy.cfg", self.example("haproxy/haproxy.cfg"));
        let mut haproxy = Command::new("sh");
        // Debian keeps servers where users do not look for programs.
        haproxy.args(["-c", "PATH=$PATH:/usr/sbin exec haproxy -db -f \"$0\""]);
        haproxy.arg(self.folder.path("haproxy.cfg"));
        let haproxy = Process::start(&mut haproxy, "`cargo xtask setup` installs it");
        self.wait_until_it_listens();
        haproxy
    }

    /// The proxy passes requests within the limits, rejects the others, and believes no header of a client.
    fn assert_limits(&self) {
        for _ in 0..2 {
            let passed = self.send("POST", "/login?a=b", "");
            assert_eq!(passed.status, 200, "{passed:?}");
        }
        for (path, headers) in
            [("/login", ""), ("//login", ""), ("/%6Cogin", ""), ("/a/../login", ""), ("/login", FORGED)]
        {
            let rejected = self.send("POST", path, headers);
            assert_eq!(rejected.status, 429, "{path} {headers}: {rejected:?}");
            assert!(rejected.header("retry-after").is_some(), "{rejected:?}");
            assert_eq!(rejected.remaining(), 0);
        }
        assert_eq!(self.send("GET", "/login", "").status, 200);
        assert_eq!(self.send("GET", "/login", FORGED).status, 200);
        assert_eq!(self.send("POST", "/login", "X-Api-Key: a\r\n").status, 200, "another client");
        assert_eq!(self.send("GET", "/a/..;/login", "").status, 400);
    }
}

impl ProxiedService {
    /// A client cannot get another counter by naming a user.
    fn assert_users_are_not_chosen_by_clients(&self) {
        let statuses =
            ["a", "b", "c"].map(|user| self.send("GET", "/", &format!("X-User-Id: {user}\r\n")).status);
        assert_eq!(statuses, [200, 200, 429]);
    }
}

#[test]
fn nginx_removes_the_user_that_a_client_names() {
    let service = ProxiedService::start_with(USER_POLICY);
    let _nginx = service.nginx();
    service.assert_users_are_not_chosen_by_clients();
}

#[test]
fn caddy_removes_the_user_that_a_client_names() {
    let service = ProxiedService::start_with(USER_POLICY);
    let _caddy = service.caddy();
    service.assert_users_are_not_chosen_by_clients();
}

#[test]
fn haproxy_removes_the_user_that_a_client_names() {
    let service = ProxiedService::start_with(USER_POLICY);
    let _haproxy = service.haproxy();
    service.assert_users_are_not_chosen_by_clients();
}

#[test]
fn nginx_auth_request_passes_and_rejects() {
    let mut service = ProxiedService::start();
    let _nginx = service.nginx();
    service.assert_limits();
    let passed = service.send("GET", "/", "");
    assert!(passed.remaining() < 100);
    service.tidegate.signal("-KILL");
    service.tidegate.wait();
    assert_eq!(service.send("GET", "/", "").status, 503, "no request passes without an answer");
}

#[test]
fn caddy_forward_auth_passes_and_rejects() {
    let service = ProxiedService::start();
    let _caddy = service.caddy();
    service.assert_limits();
}

#[test]
fn haproxy_lua_action_passes_and_rejects() {
    let mut service = ProxiedService::start();
    let _haproxy = service.haproxy();
    service.assert_limits();
    let passed = service.send("GET", "/", "");
    assert!(passed.remaining() < 100);
    service.tidegate.signal("-KILL");
    service.tidegate.wait();
    assert_eq!(service.send("GET", "/", "").status, 503, "no request passes without an answer");
}

#[test]
fn haproxy_waits_for_requests_that_a_leaky_bucket_delays() {
    let service = ProxiedService::start_with(DELAYING_POLICY);
    let _haproxy = service.haproxy();
    assert_eq!(service.send("GET", "/", "").status, 200);
    let proxy = service.proxy.to_string();
    let statuses = std::thread::scope(|scope| {
        let waiting = [(); 2].map(|()| scope.spawn(|| request(&proxy, "GET", "/", "", "").status));
        waiting.map(|delayed| delayed.join().expect("a response"))
    });
    assert_eq!(statuses, [200, 200]);
}
