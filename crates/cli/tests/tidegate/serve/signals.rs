//! Signals at the wrong moment.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use tidegate_testkit::folder::Folder;
use tidegate_testkit::process::{PolicyFile, Process, Tidegate};
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::eventually_blocking;

use super::admin::AdminGateway;
use crate::program::{PATH, command};

/// A gateway that is still starting: it waits for the sockets of the process that it takes over from.
fn start_slowly(folder: &Folder) -> (Process, UnixStream) {
    let socket = folder.text_path("takeover.socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let upstream = format!("http://{}", echo());
    let mut command = command();
    command.args(["serve", "--listen", "127.0.0.1:0", "--upstream", &upstream, "--takeover", &socket]);
    let process = Process::start(&mut command, "");
    (process, listener.accept().unwrap().0)
}

#[test]
fn sighup_during_the_start_reloads_after_it() {
    let folder = Folder::new();
    let (process, mut predecessor) = start_slowly(&folder);
    process.signal("-HUP");
    // No sockets, so the gateway opens its own.
    predecessor.write_all(b"tidegate").unwrap();
    let is_started = process.find_output(|line| line.contains("Ctrl-C").then_some(()));
    assert!(is_started.is_some(), "{:?}", process.find_error(|line| Some(line.to_owned())));
    process.find_error(|line| line.contains("policy reloaded").then_some(())).unwrap();
}

#[test]
fn sigterm_during_the_start_ends_the_process_with_success() {
    let folder = Folder::new();
    let (mut process, _predecessor) = start_slowly(&folder);
    process.signal("-TERM");
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn sigterm_during_a_slow_reload_ends_the_process_before_the_reload() {
    let tiers = "clients: { tiers: { file: keys.csv } }\nadmin: off\n\
                 rate_limits: { tiers: { free: { requests: 1, window: 1h } } }\n";
    let policy = PolicyFile::new("");
    let keys = policy.beside("keys.csv");
    std::fs::write(&keys, "key,free\n").unwrap();
    let upstream = format!(
        "upstreams: {{ api: {{ servers: ['http://{}'] }} }}\nroutes: [{{ upstream: api }}]\n",
        echo()
    );
    policy.write(&format!("{upstream}{tiers}"));
    let mut command = command();
    command.args(["serve", "--listen", "127.0.0.1:0", "--config", &policy.path()]);
    let mut process = Process::start(&mut command, "");
    process.find_output(|line| line.contains("Ctrl-C").then_some(())).unwrap();
    let mut many = String::new();
    for number in 0..1_000_000 {
        writeln!(many, "key-{number},free").unwrap();
    }
    std::fs::write(&keys, many).unwrap();
    process.signal("-HUP");
    let tasks = format!("/proc/{}/task", process.id());
    eventually_blocking("the reload has started", || {
        let tasks = std::fs::read_dir(&tasks).unwrap().map_while(Result::ok);
        let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.any(|name| name.trim() == "reload")
    });
    process.signal("-TERM");
    assert_eq!(process.wait().code(), Some(0));
    let first = process.find_error(|line| {
        let is_event = line.contains("\"reloaded\"") || line.contains("\"stopped\"");
        is_event.then(|| line.to_owned())
    });
    assert!(first.as_ref().is_some_and(|line| line.contains("\"stopped\"")), "{first:?}");
}

#[test]
fn state_file_beyond_the_file_size_limit_fails_the_change_and_not_the_process() {
    let gateway = AdminGateway::start("");
    let AdminGateway { server, policy, token, .. } = gateway;
    drop(server);
    // The state and the token exist. Nothing can be written beyond the first 512 bytes of a file.
    let mut limited = Command::new("sh");
    limited.args([
        "-c",
        "ulimit -f 1; exec \"$0\" serve --listen 127.0.0.1:0 --config \"$1\"",
        PATH,
        &policy.path(),
    ]);
    let server = Tidegate::start(&mut limited);
    let line = server.startup_output.lines().find(|line| line.starts_with("  admin ")).unwrap();
    let admin = line.split_once("http://").unwrap().1.split_once(';').unwrap().0.to_owned();
    let gateway = AdminGateway { server, policy, admin, token };
    let response = gateway.send("POST", "/v1/bans", r#"{"subject":"user:bob"}"#);
    assert_eq!(response.status, 500, "{response:?}");
    assert!(response.text().contains("not_written"), "{response:?}");
    assert_eq!(gateway.send("GET", "/v1/status", "").status, 200);
}
