//! Reloads of the policy while clients send requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tidegate_testkit::client::{Connection, get};
use tidegate_testkit::process::PolicyFile;
use tidegate_testkit::server::echo;

use crate::program::serve;

/// A policy with a limit that is never reached in a window that never ends during a test.
fn policy(servers: &str, rest: &str) -> String {
    format!(
        "upstreams: {{ api: {{ servers: [{servers}] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         reload: {{ quiet: 100ms }}\nrate_limits:\n  default: {{ requests: 100_000_000, window: 365d, algorithm: fixed_window }}\n{rest}"
    )
}

/// Sends requests without a pause until `stop`, and expects one less remaining each time. Returns the number of requests.
fn send_requests(address: &str, client: usize, stop: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let (address, stop) = (address.to_owned(), Arc::clone(stop));
    std::thread::spawn(move || {
        let mut connection = Connection::open(&address).unwrap();
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            let response = connection.get(&format!("X-Forwarded-For: 203.0.113.{client}\r\n")).unwrap();
            assert_eq!(response.status, 200, "{response:?}");
            sent += 1;
            assert_eq!(response.remaining(), 100_000_000 - sent, "no counter is reset");
        }
        sent
    })
}

/// Reloads valid and invalid policies `reloads` times while clients send requests.
fn reload_under_load(reloads: usize) {
    let (first, second) = (format!("http://{}", echo()), format!("http://{}", echo()));
    let both = format!("{first}, {second}");
    let clients = "clients: { ip: { trusted_proxies: 127.0.0.1 } }\n";
    let policy = |servers: &str, rest: &str| policy(servers, &format!("{rest}{clients}"));
    let file = PolicyFile::new(&policy(&first, ""));
    let server = serve(&["--config", &file.path()]);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..3).map(|client| send_requests(&server.address, client, &stop)).collect();
    for reload in 0..reloads {
        match reload % 5 {
            0 => file.write(&policy(
                &both,
                &format!("  endpoints: {{ /x: {{ requests: {}, window: 1m }} }}\n", reload + 1),
            )),
            1 => file.write(&policy(&first, "headers: [x_ratelimit, ratelimit]\n")),
            2 => file.write("rate_limits: { default: { requests: 0, window: 1m } }\n"),
            3 => file.write(&policy(&second, "error_body: nested\n")),
            _ => file.write("upstreams: [{{ this is no YAML"),
        }
        let line = server.wait_for_log("\"event\":\"reload");
        let expected =
            if matches!(reload % 5, 2 | 4) { "the running policy stays active" } else { "policy reloaded" };
        assert!(line.contains(expected), "reload {reload}: {line}");
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        assert!(client.join().unwrap() > 100);
    }
}

#[test]
fn reloads_under_load_fail_no_request_and_reset_no_counter() {
    // Each reload waits until the file is quiet. Every kind happens twice.
    reload_under_load(10);
}

#[test]
#[ignore = "takes a minute: cargo xtask scorecard reload"]
fn long_reloads_under_load() {
    reload_under_load(500);
    println!("500 reloads, no request failed, no counter reset");
}

#[test]
fn sighup_reloads_the_policy() {
    let file = PolicyFile::new(&policy(&format!("http://{}", echo()), ""));
    let server = serve(&["--config", &file.path()]);
    let before = get(&server.address, "").remaining();
    server.signal("-HUP");
    assert!(server.wait_for_log("policy reloaded").contains("0 changes"));
    assert_eq!(get(&server.address, "").remaining(), before - 1);
}

#[test]
fn policy_without_upstreams_is_not_applied() {
    let good = policy(&format!("http://{}", echo()), "");
    let file = PolicyFile::new(&good);
    let server = serve(&["--config", &file.path()]);
    file.write("rate_limits: { default: { requests: 1, window: 1m } }\n");
    server.wait_for_log("the running policy stays active");
    assert_eq!(get(&server.address, "").status, 200);
}

#[test]
fn changed_keys_file_reloads_the_policy() {
    let rest = "  tiers: { premium: { requests: 7, window: 1h }, free: { requests: 3, window: 1h } }\n\
                clients: { tiers: { file: keys.csv } }\n";
    let file = PolicyFile::new("");
    let keys = file.path().replace("policy.yaml", "keys.csv");
    std::fs::write(&keys, "key,tier\nalice,free\n").unwrap();
    file.write(&policy(&format!("http://{}", echo()), rest));
    let server = serve(&["--config", &file.path()]);
    let limit =
        || get(&server.address, "X-API-Key: alice\r\n").header("x-ratelimit-limit").map(str::to_owned);
    assert_eq!(limit().as_deref(), Some("3"));
    std::fs::write(&keys, "key,tier\nalice,premium\n").unwrap();
    server.wait_for_log("policy reloaded");
    assert_eq!(limit().as_deref(), Some("7"));
}

#[test]
fn writes_to_other_files_do_not_delay_a_reload() {
    let good = policy(&format!("http://{}", echo()), "");
    let file = PolicyFile::new(&good);
    let server = serve(&["--config", &file.path()]);
    let stop = Arc::new(AtomicBool::new(false));
    let log = file.path().replace("policy.yaml", "busy.log");
    let busy = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Relaxed) {
                std::fs::write(&log, "busy").unwrap();
            }
        }
    });
    file.write(&format!("{good}error_body: nested\n"));
    server.wait_for_log("policy reloaded, 1 change");
    stop.store(true, Ordering::Relaxed);
    busy.join().unwrap();
}

#[test]
fn switched_symlink_reloads_the_policy() {
    // A rename needs no quiet time, not even one of a link on the path.
    let good = policy(&format!("http://{}", echo()), "").replace("quiet: 100ms", "quiet: 1h");
    let file = PolicyFile::new("");
    let folder = std::path::PathBuf::from(file.path().replace("/policy.yaml", ""));
    let switch_link = |version: &str, text: &str| {
        std::fs::create_dir(folder.join(version)).unwrap();
        std::fs::write(folder.join(version).join("policy.yaml"), text).unwrap();
        std::os::unix::fs::symlink(version, folder.join("next")).unwrap();
        std::fs::rename(folder.join("next"), folder.join("..data")).unwrap();
    };
    switch_link("one", &good);
    std::fs::remove_file(file.path()).unwrap();
    std::os::unix::fs::symlink("..data/policy.yaml", file.path()).unwrap();
    let server = serve(&["--config", &file.path()]);
    switch_link("two", &format!("{good}error_body: nested\n"));
    server.wait_for_log("policy reloaded, 1 change");
}

#[test]
fn changed_listen_address_requires_a_restart() {
    let good = policy(&format!("http://{}", echo()), "");
    let file = PolicyFile::new(&good);
    let server = serve(&["--config", &file.path()]);
    file.write(&format!("{good}listen: 127.0.0.1:1\n"));
    server.wait_for_log("take effect after a restart");
    assert_eq!(get(&server.address, "").status, 200);
}

#[test]
fn missing_file_of_an_invalid_policy_is_watched() {
    let good = policy(&format!("http://{}", echo()), "");
    let file = PolicyFile::new(&good);
    let server = serve(&["--config", &file.path()]);
    let tiers =
        "  tiers: { premium: { requests: 7, window: 1h } }\nclients: { tiers: { file: lists/keys.csv } }\n";
    file.write(&format!("{good}{tiers}"));
    server.wait_for_log("the running policy stays active");
    // The folder did not exist either.
    let folder = file.path().replace("policy.yaml", "lists");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(format!("{folder}/keys.csv"), "key,tier\nalice,premium\n").unwrap();
    server.wait_for_log("policy reloaded");
    let response = get(&server.address, "X-API-Key: alice\r\n");
    assert_eq!(response.header("x-ratelimit-limit"), Some("7"));
    // From now on the file is watched like any other.
    std::fs::write(format!("{folder}/keys.csv"), "key,tier\nalice,nonsense\n").unwrap();
    server.wait_for_log("the running policy stays active");
}

#[test]
fn removed_policy_file_is_reloaded_when_it_is_back() {
    let good = policy(&format!("http://{}", echo()), "");
    let file = PolicyFile::new(&good);
    let server = serve(&["--config", &file.path()]);
    std::fs::remove_file(file.path()).unwrap();
    server.wait_for_log("the running policy stays active");
    assert_eq!(get(&server.address, "").status, 200);
    file.write(&format!("{good}error_body: nested\n"));
    server.wait_for_log("policy reloaded, 1 change");
}
