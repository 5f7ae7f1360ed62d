//! The clients in examples/integrations/http/, and the files that docs/integrations/http.md shows.

#[path = "../../../../../examples/integrations/http/check.rs"]
#[expect(unreachable_pub, reason = "an example for other programs")]
mod rust_client;

use std::process::Command;

use tidegate_telemetry::Protocol;

use crate::fixture::TestService;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const POLICY: &str = "rate_limits: { default: { requests: 1, window: 1m, algorithm: fixed_window } }";

/// Runs a client twice: the second check is rejected.
fn assert_client(program: &str, file: &str) {
    let service = TestService::start(POLICY);
    let server = format!("http://{}", service.address(Protocol::Http));
    for expected in ["admitted\n", "retry after 40 s\n"] {
        let output = Command::new(program)
            .arg(format!("{ROOT}/examples/integrations/http/{file}"))
            .arg(&server)
            .output()
            .unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed, expected, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn python_client_gets_the_decision() {
    assert_client("python3", "check.py");
}

#[test]
fn node_client_gets_the_decision() {
    assert_client("node", "check.mjs");
}

#[tokio::test]
async fn rust_client_gets_the_decision() {
    let service = TestService::start(POLICY);
    let server = service.address(Protocol::Http).to_string();
    for admitted in [true, false] {
        let decision = rust_client::check(&server, "default", "user:bob").await.expect("a decision");
        assert_eq!(decision["admitted"], admitted, "{decision}");
    }
}

#[test]
fn documentation_shows_the_files_that_tests_run() {
    let page = std::fs::read_to_string(format!("{ROOT}/docs/integrations/http.md")).expect("a page");
    let files = [
        "http/check.py",
        "http/check.mjs",
        "http/check.rs",
        "nginx/tidegate.conf",
        "caddy/Caddyfile",
        "caddy/fail-open.Caddyfile",
        "haproxy/haproxy.cfg",
        "haproxy/tidegate.lua",
        "traefik/dynamic.yaml",
        "traefik/fail-open.yaml",
    ];
    for file in files {
        let text = std::fs::read_to_string(format!("{ROOT}/examples/integrations/{file}")).expect("a file");
        assert!(
            page.contains(&format!("\n{text}```")),
            "docs/integrations/http.md does not show {file} as it is"
        );
    }
}
