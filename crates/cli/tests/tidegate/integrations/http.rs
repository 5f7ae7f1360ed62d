//! nginx, Caddy and HAProxy ask the decision service, with the configurations in examples/integrations/.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use tidegate_testkit::client::{read_head, request};
use tidegate_testkit::folder::Folder;
use tidegate_testkit::message::Response;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{Nginx, PolicyFile, Process, Tidegate};
use tidegate_testkit::server::thread_per_connection;
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

/// Responds with the head of each request as the body. Requests have no bodies.
fn show_heads(stream: TcpStream) -> io::Result<()> {
    let mut read = BufReader::new(stream.try_clone()?);
    let mut write = stream;
    loop {
        let head = read_head(&mut read)?;
        write!(write, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len())?;
    }
}

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
        Self {
            tidegate,
            _policy: policy,
            app: thread_per_connection(show_heads),
            proxy: free_address(),
            folder: Folder::new(),
        }
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
        self.nginx_with(&self.example("nginx/tidegate.conf"))
    }

    fn nginx_with(&self, server: &str) -> Nginx {
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path FOLDER/{name};\n"))
            .concat();
        let configuration = format!(
            "daemon off;\nworker_processes 1;\npid FOLDER/nginx.pid;\nerror_log FOLDER/error.log;\nevents {{}}\n\
             http {{\naccess_log off;\n{temporary}{server}\n}}\n"
        );
        Nginx::start_at(self.proxy, &configuration, self.app)
    }

    fn caddy(&self) -> Process {
        self.caddy_with(&format!("{{\n\tadmin off\n}}\n{}", self.example("caddy/Caddyfile")))
    }

    fn caddy_with(&self, configuration: &str) -> Process {
        self.folder.write("Caddyfile", configuration);
        let mut caddy = Command::new("caddy");
        caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(self.folder.path("Caddyfile"));
        caddy.env("XDG_CONFIG_HOME", self.folder.root()).env("XDG_DATA_HOME", self.folder.root());
        let caddy = Process::start(&mut caddy, "`cargo xtask setup` installs it");
        self.wait_until_it_listens();
        caddy
    }

    fn haproxy(&self) -> Process {
        self.haproxy_with(&self.example("haproxy/tidegate.lua"))
    }

    fn haproxy_with(&self, action: &str) -> Process {
        self.folder.write("tidegate.lua", action);
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

/// `text` with a change that the file itself describes.
fn changed(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from}");
    text.replace(from, to)
}

impl ProxiedService {
    /// The limits hold while Tidegate answers, whatever a client sends; without it, all requests pass.
    fn assert_limits_until_tidegate_ends(mut self) {
        self.assert_limits();
        let many = (0..120).map(|number| format!("X-Header-{number}: a\r\n")).collect::<Vec<_>>().concat();
        let mut heads = vec![many];
        // Around the size that the buffers of proxies and of Tidegate hold, which each takes in another way.
        for size in
            [3_000, 7_000, 12_000, 14_500, 15_000, 15_500, 15_800, 16_000, 20_000, 31_000, 33_000, 100_000]
        {
            let values =
                (0..size / 3_000).map(|number| format!("X-Long-{number}: {}\r\n", "a".repeat(2_980)));
            heads.push(values.chain([format!("X-Last: {}\r\n", "a".repeat(size % 3_000))]).collect());
            heads.push(format!("X-Long: {}\r\n", "a".repeat(size)));
        }
        for head in &heads {
            let status = self.status_of("POST", "/login", head);
            assert_ne!(status, Some(200), "{} bytes in {} headers pass", head.len(), head.lines().count());
        }
        self.tidegate.signal("-KILL");
        self.tidegate.wait();
        for _ in 0..3 {
            let passed = self.send("POST", "/login", "X-User-Id: root\r\n");
            assert_eq!(passed.status, 200, "{passed:?}");
            assert!(!passed.text().to_lowercase().contains("x-user-id"), "{passed:?}");
        }
    }

    /// The status of the response, if there is one: a proxy may close the connection while a long head arrives.
    fn status_of(&self, method: &str, path: &str, headers: &str) -> Option<u16> {
        let mut connection = TcpStream::connect(self.proxy).expect("a connection");
        let host = self.proxy;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n");
        let _ = connection.write_all(head.as_bytes());
        let mut response = Vec::new();
        let _ = connection.read_to_end(&mut response);
        let response = String::from_utf8_lossy(&response);
        response.split(' ').nth(1)?.parse().ok()
    }
}

#[test]
fn nginx_that_fails_open_passes_requests_only_without_tidegate() {
    let service = ProxiedService::start();
    let server = changed(
        &service.example("nginx/tidegate.conf"),
        "#error_page 502 504 = @no_answer;",
        "error_page 502 504 = @no_answer;",
    );
    let _nginx = service.nginx_with(&server);
    service.assert_limits_until_tidegate_ends();
}

#[test]
fn caddy_that_fails_open_passes_requests_only_without_tidegate() {
    let service = ProxiedService::start();
    let configuration = changed(
        &service.example("caddy/fail-open.Caddyfile"),
        "\n{\n\tservers {",
        "\n{\n\tadmin off\n\tservers {",
    );
    let _caddy = service.caddy_with(&configuration);
    service.assert_limits_until_tidegate_ends();
}

#[test]
fn haproxy_that_fails_open_passes_requests_only_without_tidegate() {
    let service = ProxiedService::start();
    let action = changed(
        &service.example("haproxy/tidegate.lua"),
        "local fail_open = false",
        "local fail_open = true",
    );
    let _haproxy = service.haproxy_with(&action);
    service.assert_limits_until_tidegate_ends();
}

impl ProxiedService {
    /// A client whose requests Tidegate delays for longer than the proxy waits has an answer, if a late one.
    fn assert_delayed_requests_do_not_pass(&self) {
        assert_eq!(self.send("GET", "/", "").status, 200);
        assert_eq!(self.send("GET", "/", "").status, 503, "it is delayed by 2.5 s");
    }
}

#[test]
fn nginx_that_fails_open_rejects_requests_that_tidegate_delays() {
    let service = ProxiedService::start_with(DELAYING_POLICY);
    let server = changed(
        &service.example("nginx/tidegate.conf"),
        "#error_page 502 504 = @no_answer;",
        "proxy_read_timeout 1s; error_page 502 504 = @no_answer;",
    );
    let _nginx = service.nginx_with(&server);
    service.assert_delayed_requests_do_not_pass();
}

#[test]
fn haproxy_that_fails_open_rejects_requests_that_tidegate_delays() {
    let service = ProxiedService::start_with(DELAYING_POLICY);
    let action = service.example("haproxy/tidegate.lua");
    let action = changed(&action, "local fail_open = false", "local fail_open = true");
    let _haproxy = service.haproxy_with(&changed(&action, "local timeout = 32000", "local timeout = 500"));
    service.assert_delayed_requests_do_not_pass();
}

#[test]
fn nginx_sends_the_body_and_headers_of_a_rejection_and_tells_the_app_host_and_client() {
    let service = ProxiedService::start();
    let _nginx = service.nginx();
    let passed = service.send("POST", "/login", "X-Forwarded-For: 198.51.100.1\r\n");
    assert!(
        passed.header("ratelimit").is_some() && passed.header("ratelimit-policy").is_some(),
        "{passed:?}"
    );
    let seen = passed.text().to_lowercase();
    assert!(seen.contains("198.51.100.1, 127.0.0.1"), "{seen}");
    assert!(seen.contains(&format!("host: {}", service.proxy.ip())), "{seen}");
    service.send("POST", "/login", "");
    let rejected = service.send("POST", "/login", "");
    assert_eq!(rejected.header("content-type"), Some("application/json"), "{rejected:?}");
    assert_eq!(rejected.json()["error"], "rate_limit_exceeded");
    assert_eq!(rejected.json()["rule"], "endpoint:POST /login");
    assert!(rejected.header("ratelimit").is_some() && rejected.header("ratelimit-policy").is_some());
    let ambiguous = service.send("GET", "/a/..;/login", "");
    assert_eq!(ambiguous.status, 400);
    assert!(ambiguous.json()["error"].is_string(), "{ambiguous:?}");
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
