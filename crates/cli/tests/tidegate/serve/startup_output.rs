//! The output of `tidegate serve` at its start.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use tidegate_testkit::client::get;
use tidegate_testkit::process::PolicyFile;
use tidegate_testkit::server::echo;

use crate::program::{command, run, serve};

#[test]
fn demo_responds_with_its_limit() {
    let server = serve(&[]);
    let first = get(&server.address, "");
    assert_eq!(first.status, 200, "{first:?}");
    assert!(first.text().contains("GET /hello"), "{first:?}");
    assert_eq!(first.remaining(), 9, "{first:?}");
}

#[test]
fn demo_startup_output_shows_a_request_to_try() {
    let server = serve(&[]);
    assert!(
        server.startup_output.contains(&format!("curl -i http://{}/", server.address)),
        "{}",
        server.startup_output
    );
    assert!(server.startup_output.contains("  limit      default: 10 per 1m"), "{}", server.startup_output);
}

#[test]
fn upstream_and_limit_options_print_the_equivalent_policy() {
    let upstream = format!("http://{}", echo());
    let server = serve(&["--upstream", &upstream, "--limit", "100/m"]);
    assert_eq!(get(&server.address, "").header("x-ratelimit-limit"), Some("100"));
    let (_, rest) = server.startup_output.split_once("Equivalent policy file:\n\n").unwrap();
    let (yaml, _) = rest.split_once("\n\n").unwrap();
    assert!(yaml.starts_with("listen: ['127.0.0.1:0']\nupstreams:"), "{yaml}");
    let policy = PolicyFile::new(&format!("{yaml}\n"));
    let checked = run(&["check", &policy.path()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let as_file = serve(&["--config", &policy.path()]);
    assert_eq!(get(&as_file.address, "").header("x-ratelimit-limit"), Some("100"));
}

#[test]
fn policy_file_without_routes_and_an_upstream_option_forward_with_the_limits_of_the_file() {
    let upstream = format!("http://{}", echo());
    let limits = "admin: off\nrate_limits: { default: { requests: 7, window: 1m } }\n";
    let policy = PolicyFile::new(limits);
    let server = serve(&["--config", &policy.path(), "--upstream", &upstream]);
    let response = get(&server.address, "");
    assert_eq!((response.status, response.header("x-ratelimit-limit")), (200, Some("7")));
    policy.write(&limits.replace("requests: 7", "requests: 9"));
    server.wait_for_log("policy reloaded");
    assert_eq!(get(&server.address, "").header("x-ratelimit-limit"), Some("9"));
    // Two places must not say where requests go.
    policy.write(&format!(
        "{limits}upstreams: {{ api: {{ servers: {upstream} }} }}\nroutes: [{{ upstream: api }}]\n"
    ));
    let output =
        run(&["serve", "--listen", "127.0.0.1:0", "--config", &policy.path(), "--upstream", &upstream]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("without `--upstream`"), "{error}");
    let output = run(&["serve", "--config", &policy.path(), "--upstream", "localhost"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("http://localhost"), "{error}");
}

#[test]
fn both_helps_say_what_the_redis_protocol_is_for() {
    for help in ["-h", "--help"] {
        let output = run(&["serve", help]);
        let text = String::from_utf8(output.stdout).unwrap();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (_, resp) = text.split_once("--resp <HOST:PORT>").unwrap();
        assert!(resp.contains("any Redis client sends `CL.THROTTLE`"), "{help}: {text}");
    }
}

#[test]
fn invented_api_keys_without_a_policy_share_one_limit() {
    let upstream = format!("http://{}", echo());
    for args in [&["--limit", "5/m"][..], &["--upstream", &upstream, "--limit", "5/m"]] {
        let server = serve(args);
        let left: Vec<_> = (0..5)
            .map(|turn| get(&server.address, &format!("X-API-Key: invented-{turn}\r\n")).remaining())
            .collect();
        assert_eq!(left, [4, 3, 2, 1, 0]);
        assert_eq!(get(&server.address, "X-API-Key: one-more\r\n").status, 429);
        assert!(!server.startup_output.to_lowercase().contains("key"), "{}", server.startup_output);
    }
}

#[test]
fn unverified_api_keys_are_warned_of_at_the_start_and_by_check() {
    let text = |verify: &str| {
        format!(
            "upstreams: {{ api: {{ servers: ['http://{}'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\nadmin: off\n\
             clients: {{ api_key: {{ verify: {verify} }} }}\nrate_limits: {{ default: {{ requests: 5, window: 1h }} }}\n",
            echo()
        )
    };
    let what = "API keys are not verified";
    for (verify, is_warned) in [("none", true), ("keys_file", false)] {
        let policy = PolicyFile::new(&text(verify));
        let server = serve(&["--config", &policy.path()]);
        assert_eq!(server.startup_output.contains(what), is_warned, "{}", server.startup_output);
        let checked = run(&["check", &policy.path()]);
        assert!(checked.status.success());
        assert_eq!(String::from_utf8_lossy(&checked.stdout).contains(what), is_warned);
    }
}

#[test]
fn invalid_limit_option_is_an_error() {
    let output = run(&["serve", "--upstream", "http://localhost:3000", "--limit", "many"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("`many`") && error.contains("100/m"), "{error}");
}

#[test]
fn invalid_policy_fails_the_start() {
    let policy = PolicyFile::new("rate_limits: { default: { requests: 0, window: 1m } }");
    let output = run(&["serve", "--config", &policy.path()]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("policy.yaml:1:"), "{error}");
}

#[test]
fn listen_address_in_use_is_an_error() {
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = occupied.local_addr().unwrap().to_string();
    let output = run(&["serve", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("cannot listen on {address}")), "{error}");
    assert!(error.contains("another address"), "{error}");
}

#[test]
fn listen_option_that_is_no_address_is_an_error_with_an_example() {
    let output = run(&["serve", "--listen", "8080"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("cannot listen on 8080"), "{error}");
    assert!(error.contains("127.0.0.1:8080"), "an example shows the form: {error}");
}

#[test]
fn startup_errors_name_the_cause_without_error_numbers() {
    let policy = |rest: &str| {
        PolicyFile::new(&format!(
            "upstreams: {{ api: {{ servers: ['http://127.0.0.1:1'] }} }}\nroutes: [{{ upstream: api }}]\n\
             listen: 127.0.0.1:0\nadmin: off\nrate_limits: {{ default: {{ requests: 5, window: 1h }} }}\n{rest}"
        ))
    };
    let log = policy("log: { to: none/a.log }");
    let store = policy("store: { directory: /proc/none }");
    for (args, expected) in [
        (["--cores", "0"], "expected a whole number of at least 1"),
        (["--listen", "no-such-host.invalid:1"], "invalid address or unknown host name"),
        (["--config", &log.path()], "its folder does not exist; check `log.to`"),
        (["--config", &store.path()], "cannot create the folder /proc/none: no such file"),
    ] {
        let output = run(&["serve", args[0], args[1]]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{error}");
        assert!(!error.contains("os error"), "{error}");
    }
}

/// A file on a full disk.
fn full_disk() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn startup_output_on_a_full_disk_does_not_end_the_process() {
    let mut command = command();
    command.args(["serve", "--listen", "127.0.0.1:0"]).stdout(full_disk()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("\"started\"")));
    Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap();
    let rest: Vec<_> = lines.collect();
    assert_eq!(process.wait().unwrap().code(), Some(0), "{rest:?}");
}

#[test]
fn problems_on_a_full_disk_are_a_failure_and_no_panic() {
    let policy = PolicyFile::new("rate_limits: { default: { requests: 0 } }");
    for args in
        [&["serve", "--config", &policy.path()][..], &["explain", "--config", &policy.path(), "GET", "/"]]
    {
        let status = command().args(args).stderr(full_disk()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{args:?}");
    }
}
