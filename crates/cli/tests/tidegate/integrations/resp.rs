//! Real Redis clients, and the examples of docs/integrations/resp.md.

#[allow(unreachable_pub, reason = "the example is shown in the documentation as it is")]
#[path = "../../integrations/throttle.rs"]
mod example;

use std::path::Path;
use std::process::Command;

use redis::{Client, ProtocolVersion};
use tidegate_testkit::process::{PolicyFile, Tidegate};

use crate::program::{ROOT, command};

/// A decision service for Redis clients, and its port.
fn serve_resp(policy: &str) -> (Tidegate, PolicyFile, String) {
    let file = PolicyFile::new(policy);
    let server =
        Tidegate::start(command().args(["serve", "--resp", "127.0.0.1:0", "--config", &file.path()]));
    let (_, port) = server.address.rsplit_once(':').unwrap();
    let port = port.to_owned();
    (server, file, port)
}

const POLICY: &str =
    "admin: off\nrate_limits: { default: { requests: 100, window: 1m, algorithm: token_bucket } }\n";

/// Runs a script of tests/integrations and returns its output.
fn run_script(program: &str, script: &str, port: &str) -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let installed = target.join("frameworks");
    assert!(installed.is_dir(), "{} is missing; run `cargo xtask setup`", installed.display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integrations").join(script);
    let mut command = Command::new(program);
    command.arg(script).env("PORT", port);
    command.env("PYTHONPATH", installed.join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("NODE_PATH", installed.join("node/node_modules"));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn redis_cli(port: &str, arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-p", port]).args(arguments).output();
    let output = output.expect("redis-cli; run `cargo xtask setup`");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn redis_py_connects_with_both_protocols_and_pipelines() {
    let (_server, _file, port) = serve_resp(POLICY);
    assert_eq!(run_script("python3", "clients.py", &port), "passed\n");
}

#[test]
fn ioredis_and_node_redis_connect_with_both_protocols_and_pipelines() {
    let (_server, _file, port) = serve_resp(POLICY);
    assert_eq!(run_script("node", "clients.mjs", &port), "passed\n");
}

#[test]
fn redis_cli_connects_with_both_protocols() {
    let (_server, _file, port) = serve_resp(POLICY);
    let throttle = ["CL.THROTTLE", "key", "15", "30", "60"];
    assert_eq!(redis_cli(&port, &throttle), "0\n16\n15\n-1\n2\n");
    assert_eq!(redis_cli(&port, &[&["-3"], &throttle[..]].concat()), "0\n16\n14\n-1\n4\n");
    assert_eq!(redis_cli(&port, &["PING"]), "PONG\n");
    assert!(redis_cli(&port, &["GET", "key"]).contains("ERR unknown command 'GET'"));
}

#[test]
fn redis_cli_without_the_token_is_rejected() {
    let policy = PolicyFile::new("");
    let token = policy.beside("token");
    std::fs::write(&token, "secret-token-of-the-listener\n").unwrap();
    policy.write(&format!(
        "admin: off\nservice: {{ resp: {{ address: '127.0.0.1:0', token_file: {token} }} }}\n\
         rate_limits: {{ default: {{ requests: 100, window: 1m }} }}\n"
    ));
    let server = Tidegate::start(command().args(["serve", "--config", &policy.path()]));
    let (_, port) = server.address.rsplit_once(':').unwrap();
    let throttle = ["CL.THROTTLE", "key", "15", "30", "60"];
    let with = |options: &[&'static str]| redis_cli(port, &[options, &throttle[..]].concat());
    assert_eq!(with(&[]), "NOAUTH Authentication required.\n\n");
    assert_eq!(redis_cli(port, &["PING"]), "PONG\n");
    assert!(with(&["--no-auth-warning", "-a", "wrong"]).contains("NOAUTH"));
    assert!(with(&["-3"]).contains("NOAUTH"));
    let accepted = ["-3", "--no-auth-warning", "-a", "secret-token-of-the-listener"];
    assert_eq!(with(&accepted), "0\n16\n15\n-1\n2\n");
    assert_eq!(with(&accepted[1..]), "0\n16\n14\n-1\n4\n");
}

#[test]
fn redis_crate_connects_with_both_protocols_and_pipelines() {
    let (_server, _file, port) = serve_resp(POLICY);
    for (name, suffix) in [("two", ""), ("three", "?protocol=resp3")] {
        let client = Client::open(format!("redis://127.0.0.1:{port}/{suffix}")).unwrap();
        let is_resp3 = client.get_connection_info().redis_settings().protocol() == ProtocolVersion::RESP3;
        assert_eq!(is_resp3, name == "three");
        let mut connection = client.get_connection().unwrap();
        let mut pipeline = redis::pipe();
        for _ in 0..10_000 {
            pipeline.cmd("CL.THROTTLE").arg(name).arg(4_999).arg(1).arg(3_600);
        }
        let replies: Vec<Vec<i64>> = pipeline.query(&mut connection).unwrap();
        assert_eq!(replies.len(), 10_000);
        assert_eq!(replies.iter().filter(|reply| reply[0] == 0).count(), 5_000);
        let mut check = redis::cmd("TIDEGATE.CHECK");
        check.arg("default").arg(format!("user:{name}")).arg(100);
        for is_admitted in [1, 0] {
            let reply: Vec<i64> = check.query(&mut connection).unwrap();
            assert_eq!(reply[0], is_admitted, "{reply:?}");
        }
    }
}

#[test]
fn examples_of_the_documentation_are_the_tested_files() {
    let page = std::fs::read_to_string(format!("{ROOT}/docs/integrations/resp.md")).unwrap();
    for (file, language) in [("throttle.py", "python"), ("throttle.mjs", "js"), ("throttle.rs", "rust")] {
        let tested = std::fs::read_to_string(format!("{ROOT}/crates/cli/tests/integrations/{file}")).unwrap();
        assert!(page.contains(&format!("```{language}\n{tested}```\n")), "{file} differs from the page");
    }
}

#[test]
fn examples_of_the_documentation_report_admitted_and_rejected_requests() {
    let policy =
        "admin: off\nrate_limits: { default: { requests: 1, window: 1h, algorithm: token_bucket } }\n";
    for (program, script) in [("python3", "throttle.py"), ("node", "throttle.mjs")] {
        let (_server, _file, port) = serve_resp(policy);
        let output = run_script(program, script, &port);
        assert!(output.starts_with("admitted, 15 left\nadmitted\n"), "{script}: {output}");
        redis_cli(&port, &["CL.THROTTLE", "user123", "15", "30", "3600", "15"]);
        let output = run_script(program, script, &port);
        let lines: Vec<_> = output.lines().collect();
        assert!(
            lines[0].starts_with("rejected, retry in ") && lines[0].ends_with(" s"),
            "{script}: {output}"
        );
        assert!(
            lines[1].starts_with("rejected, retry in ") && lines[1].ends_with(" ms"),
            "{script}: {output}"
        );
    }
    let (_server, _file, port) = serve_resp(policy);
    example::example(&format!("redis://127.0.0.1:{port}/")).unwrap();
}
