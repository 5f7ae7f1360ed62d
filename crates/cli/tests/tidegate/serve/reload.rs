//! Another policy while requests come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tidegate_testkit::client::{Connection, get};
use tidegate_testkit::process::PolicyFile;
use tidegate_testkit::server::echo;

use crate::program::serve;

/// A limit that nobody reaches and no window's end meets.
fn policy(servers: &str, rest: &str) -> String {
    format!(
        "upstreams: {{ api: {{ servers: [{servers}] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         rate_limits:\n  default: {{ requests: 100_000_000, window: 365d, algorithm: fixed_window }}\n{rest}"
    )
}

/// Asks without a pause until told to stop, each time expecting one less. How often it asked.
fn ask_on(address: &str, client: usize, stop: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let (address, stop) = (address.to_owned(), Arc::clone(stop));
    std::thread::spawn(move || {
        let mut connection = Connection::open(&address).unwrap();
        let mut asked = 0;
        while !stop.load(Ordering::Relaxed) {
            let response = connection.get(&format!("X-Forwarded-For: 203.0.113.{client}\r\n")).unwrap();
            assert_eq!(response.status, 200, "{response:?}");
            asked += 1;
            assert_eq!(response.remaining(), 100_000_000 - asked, "no counter begins again");
        }
        asked
    })
}

/// Reloads so many times, good policies and bad ones, while clients send requests.
fn reload_under_load(reloads: usize) {
    let (first, second) = (format!("http://{}", echo()), format!("http://{}", echo()));
    let both = format!("{first}, {second}");
    let clients = "clients: { ip: { trusted_proxies: 127.0.0.1 } }\n";
    let policy = |servers: &str, rest: &str| policy(servers, &format!("{rest}{clients}"));
    let file = PolicyFile::new(&policy(&first, ""));
    let server = serve(&["--config", &file.path()]);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..3).map(|client| ask_on(&server.address, client, &stop)).collect();
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
        let heard = server.wait_for_log("\"event\":\"reload");
        let expected =
            if matches!(reload % 5, 2 | 4) { "the running policy stays active" } else { "policy reloaded" };
        assert!(heard.contains(expected), "reload {reload}: {heard}");
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        assert!(client.join().unwrap() > 100);
    }
}

#[test]
fn reloads_under_load_fail_no_request_and_reset_no_counter() {
    // Each waits until the file is quiet: twice every kind.
    reload_under_load(10);
}

#[test]
#[ignore = "takes a minute: cargo xtask scorecard reload"]
fn long_reloads_under_load() {
    reload_under_load(500);
    println!("500 reloads, no request failed, no counter reset");
}

#[test]
fn sighup_reads_the_policy_again() {
    let file = PolicyFile::new(&policy(&format!("http://{}", echo()), ""));
    let server = serve(&["--config", &file.path()]);
    let before = get(&server.address, "").remaining();
    server.signal("-HUP");
    assert!(server.wait_for_log("policy reloaded").contains("0 changes"));
    assert_eq!(get(&server.address, "").remaining(), before - 1);
}

#[test]
fn a_policy_that_serves_nothing_is_not_put_in_force() {
    let good = policy(&format!("http://{}", echo()), "");
    let file = PolicyFile::new(&good);
    let server = serve(&["--config", &file.path()]);
    file.write("rate_limits: { default: { requests: 1, window: 1m } }\n");
    server.wait_for_log("the running policy stays active");
    assert_eq!(get(&server.address, "").status, 200);
}

#[test]
fn a_list_of_keys_is_watched_too() {
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
fn what_else_happens_in_the_folder_does_not_delay_a_reload() {
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
fn a_mounted_configuration_is_reloaded_when_its_link_is_turned() {
    let good = policy(&format!("http://{}", echo()), "");
    let file = PolicyFile::new("");
    let folder = std::path::PathBuf::from(file.path().replace("/policy.yaml", ""));
    let turn = |version: &str, text: &str| {
        std::fs::create_dir(folder.join(version)).unwrap();
        std::fs::write(folder.join(version).join("policy.yaml"), text).unwrap();
        std::os::unix::fs::symlink(version, folder.join("next")).unwrap();
        std::fs::rename(folder.join("next"), folder.join("..data")).unwrap();
    };
    turn("one", &good);
    std::fs::remove_file(file.path()).unwrap();
    std::os::unix::fs::symlink("..data/policy.yaml", file.path()).unwrap();
    let server = serve(&["--config", &file.path()]);
    turn("two", &format!("{good}error_body: nested\n"));
    server.wait_for_log("policy reloaded, 1 change");
}

#[test]
fn another_address_is_said_to_take_a_restart() {
    let good = policy(&format!("http://{}", echo()), "");
    let file = PolicyFile::new(&good);
    let server = serve(&["--config", &file.path()]);
    file.write(&format!("{good}listen: 127.0.0.1:1\n"));
    server.wait_for_log("take effect after a restart");
    assert_eq!(get(&server.address, "").status, 200);
}

#[test]
fn what_a_bad_policy_misses_is_watched_for() {
    let good = policy(&format!("http://{}", echo()), "");
    let file = PolicyFile::new(&good);
    let server = serve(&["--config", &file.path()]);
    let tiers =
        "  tiers: { premium: { requests: 7, window: 1h } }\nclients: { tiers: { file: lists/keys.csv } }\n";
    file.write(&format!("{good}{tiers}"));
    server.wait_for_log("the running policy stays active");
    // Not even the folder was there.
    let folder = file.path().replace("policy.yaml", "lists");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(format!("{folder}/keys.csv"), "key,tier\nalice,premium\n").unwrap();
    server.wait_for_log("policy reloaded");
    let answer = get(&server.address, "X-API-Key: alice\r\n");
    assert_eq!(answer.header("x-ratelimit-limit"), Some("7"));
    // From now on it is a file like any other.
    std::fs::write(format!("{folder}/keys.csv"), "key,tier\nalice,nonsense\n").unwrap();
    server.wait_for_log("the running policy stays active");
}

#[test]
fn a_policy_that_is_gone_is_read_when_it_comes_back() {
    let good = policy(&format!("http://{}", echo()), "");
    let file = PolicyFile::new(&good);
    let server = serve(&["--config", &file.path()]);
    std::fs::remove_file(file.path()).unwrap();
    server.wait_for_log("the running policy stays active");
    assert_eq!(get(&server.address, "").status, 200);
    file.write(&format!("{good}error_body: nested\n"));
    server.wait_for_log("policy reloaded, 1 change");
}
