//! Reloads of files that may be incomplete, or are no files at all.

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tidegate_testkit::client::{Connection, get};
use tidegate_testkit::process::PolicyFile;
use tidegate_testkit::wait::eventually_blocking;

use super::admin::{AdminGateway, policy_text};
use crate::program::run;

const BANS: &str = "203.0.113.1\n203.0.113.2\n203.0.113.3\n203.0.113.4\n";
const BANNED: &str = "X-Forwarded-For: 203.0.113.4\r\n";

/// A gateway with a ban file. A file that is written in place must be quiet for longer than a test takes.
fn start(bans: &str) -> AdminGateway {
    let policy = PolicyFile::new(&policy_text("bans: { file: bans.txt }\nreload: { quiet: 1h }\n"));
    std::fs::write(policy.beside("bans.txt"), bans).unwrap();
    AdminGateway::serve(policy)
}

/// Renames a new ban file into place.
fn replace_bans(gateway: &AdminGateway, bans: &str) {
    let new = gateway.policy.beside("bans.new");
    std::fs::write(&new, bans).unwrap();
    std::fs::rename(new, gateway.policy.beside("bans.txt")).unwrap();
}

fn make_fifo(path: &str) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn half_written_ban_file_is_not_applied_and_a_renamed_one_is_applied_at_once() {
    let gateway = start(BANS);
    let (first, last) = BANS.split_at(BANS.len() / 2);
    let mut writer = std::fs::File::create(gateway.policy.beside("bans.txt")).unwrap();
    writer.write_all(first.as_bytes()).unwrap();
    // While the writer pauses, for as long as these requests take, all bans stay in force.
    let mut connection = Connection::open(&gateway.server.address).unwrap();
    for _ in 0..4_000 {
        assert_eq!(connection.get(BANNED).unwrap().status, 403);
    }
    writer.write_all(last.as_bytes()).unwrap();
    assert_eq!(get(&gateway.server.address, "X-Forwarded-For: 203.0.113.5\r\n").status, 200);
    replace_bans(&gateway, &format!("{BANS}203.0.113.5\n"));
    let reloaded = gateway.server.wait_for_log("policy reloaded");
    assert!(reloaded.contains("1 change"), "{reloaded}");
    assert_eq!(get(&gateway.server.address, "X-Forwarded-For: 203.0.113.5\r\n").status, 403);
}

#[test]
fn reload_that_loses_most_bans_is_refused_until_it_is_forced() {
    let gateway = start(BANS);
    replace_bans(&gateway, "203.0.113.1\n");
    let refused = gateway.server.wait_for_log("reload_refused");
    assert!(
        refused.contains("3 of 4 bans would be removed") && refused.contains("reload --force"),
        "{refused}"
    );
    assert_eq!(get(&gateway.server.address, BANNED).status, 403);
    let (is_ok, status, _) = gateway.command(&["status"]);
    assert!(is_ok && status.contains("reload       refused") && status.contains("4 bans would"), "{status}");
    let metrics = gateway.send("GET", "/metrics", "").text();
    assert!(metrics.contains("tidegate_reloads_total{result=\"refused\"} 1"), "{metrics}");
    assert!(metrics.contains("tidegate_reload_failed 1"), "{metrics}");
    let (is_ok, _, error) = gateway.command(&["reload"]);
    assert!(!is_ok && error.contains("3 of 4 bans would be removed") && error.contains("--force"), "{error}");
    // A signal forces nothing either.
    gateway.server.signal("-HUP");
    gateway.server.wait_for_log("reload_refused");
    assert_eq!(get(&gateway.server.address, BANNED).status, 403);
    let (is_ok, output, error) = gateway.command(&["reload", "--force"]);
    assert!(is_ok && output.starts_with("policy reloaded, 1 change\n"), "{output}{error}");
    assert_eq!(get(&gateway.server.address, BANNED).status, 200);
    let (_, status, _) = gateway.command(&["status"]);
    assert!(!status.contains("  reload "), "{status}");
}

#[test]
fn allowed_networks_are_reloaded_unless_most_of_them_would_be_removed() {
    let policy = PolicyFile::new(&policy_text("allow: { file: partners.txt }\n"));
    std::fs::write(policy.beside("partners.txt"), "192.0.2.0/24\n198.51.100.0/24\n203.0.113.0/24\n").unwrap();
    let gateway = AdminGateway::serve(policy);
    let status = |from: &str| get(&gateway.server.address, &format!("X-Forwarded-For: {from}\r\n")).status;
    assert_eq!((status("203.0.113.4"), status("10.0.0.1")), (200, 403));
    let replace = |networks: &str| {
        std::fs::write(gateway.policy.beside("new"), networks).unwrap();
        std::fs::rename(gateway.policy.beside("new"), gateway.policy.beside("partners.txt")).unwrap();
    };
    replace("192.0.2.0/24\n");
    let refused = gateway.server.wait_for_log("reload_refused");
    assert!(refused.contains("2 of 3 networks in `allow` would be removed"), "{refused}");
    assert_eq!(status("203.0.113.4"), 200);
    replace("192.0.2.0/24\n203.0.113.0/24\n10.0.0.0/8\n");
    gateway.server.wait_for_log("policy reloaded");
    assert_eq!((status("203.0.113.4"), status("10.0.0.1"), status("198.51.100.1")), (200, 200, 403));
}

#[test]
fn reload_command_applies_a_file_that_is_not_quiet() {
    let gateway = start(BANS);
    std::fs::write(gateway.policy.beside("bans.txt"), "203.0.113.1\n203.0.113.2\n").unwrap();
    let (is_ok, output, error) = gateway.command(&["reload"]);
    assert!(is_ok && output.contains("1 change"), "{output}{error}");
    assert_eq!(get(&gateway.server.address, BANNED).status, 200);
}

#[test]
fn ban_file_that_is_appended_to_all_the_time_is_applied_although_it_is_never_quiet() {
    let policy = PolicyFile::new(&policy_text("bans: { file: bans.txt }\nreload: { quiet: 100ms }\n"));
    std::fs::write(policy.beside("bans.txt"), BANS).unwrap();
    let gateway = AdminGateway::serve(policy);
    let stop = Arc::new(AtomicBool::new(false));
    let mut file = std::fs::File::options().append(true).open(gateway.policy.beside("bans.txt")).unwrap();
    let writer = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            file.write_all(b"203.0.113.5\n").unwrap();
            while !stop.load(Ordering::Relaxed) {
                file.write_all(b"#\n").unwrap();
                std::thread::yield_now();
            }
        }
    });
    gateway.server.wait_for_log("policy reloaded");
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    assert_eq!(get(&gateway.server.address, "X-Forwarded-For: 203.0.113.5\r\n").status, 403);
}

#[test]
fn fifo_in_place_of_a_file_is_rejected_and_sigterm_works() {
    let mut gateway = start(BANS);
    let bans = gateway.policy.beside("bans.txt");
    std::fs::remove_file(&bans).unwrap();
    make_fifo(&bans);
    gateway.server.signal("-HUP");
    let failed = gateway.server.wait_for_log("reload_failed");
    assert!(failed.contains("not a regular file"), "{failed}");
    assert_eq!(get(&gateway.server.address, BANNED).status, 403);
    std::fs::remove_file(gateway.policy.path()).unwrap();
    make_fifo(&gateway.policy.path());
    gateway.server.signal("-HUP");
    let failed = gateway.server.wait_for_log("reload_failed");
    assert!(failed.contains("not a regular file"), "{failed}");
    gateway.server.signal("-TERM");
    assert_eq!(gateway.server.wait().code(), Some(0));
}

#[test]
fn fifo_as_policy_ban_list_or_token_fails_the_start() {
    let policy = PolicyFile::new(&policy_text("bans: { file: bans.txt }\n"));
    make_fifo(&policy.beside("bans.txt"));
    let start = |policy: &str| {
        let output = run(&["serve", "--listen", "127.0.0.1:0", "--config", policy]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = start(&policy.path());
    assert!(error.contains("not a regular file"), "{error}");
    let error = start(&policy.beside("bans.txt"));
    assert!(error.contains("not a regular file"), "{error}");
    policy.write(&policy_text("").replace("'127.0.0.1:0'", "'127.0.0.1:0', token_file: t"));
    make_fifo(&policy.beside("t"));
    let error = start(&policy.path());
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn metrics_and_status_say_when_the_policy_was_loaded_and_when_a_reload_failed() {
    let gateway = start(BANS);
    let metrics = || gateway.send("GET", "/metrics", "").text();
    let loaded_at = || {
        let page = metrics();
        let name = "tidegate_reload_last_success_timestamp_seconds ";
        page.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok()).expect(name)
    };
    let build = format!("tidegate_build_info{{version=\"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(metrics().contains(&build), "{}", metrics());
    let started = loaded_at();
    assert!(started > 1_700_000_000);
    std::fs::remove_file(gateway.policy.beside("bans.txt")).unwrap();
    gateway.server.signal("-HUP");
    gateway.server.wait_for_log("reload_failed");
    eventually_blocking("a recorded failure", || metrics().contains("tidegate_reload_failed 1"));
    assert!(metrics().contains("tidegate_reloads_total{result=\"invalid\"} 1"), "{}", metrics());
    assert_eq!(loaded_at(), started);
    let reload = gateway.send("GET", "/v1/status", "").json()["reload"].clone();
    assert_eq!((&reload["result"], &reload["applied_at"]), (&json!("invalid"), &json!(started)), "{reload}");
    assert!(reload["failed_at"].as_u64() >= Some(started), "{reload}");
    let (_, status, _) = gateway.command(&["status"]);
    assert!(status.contains("  reload       failed ") && status.contains("s ago; the running"), "{status}");
    replace_bans(&gateway, BANS);
    assert!(gateway.command(&["reload"]).0);
    let reload = gateway.send("GET", "/v1/status", "").json()["reload"].clone();
    assert_eq!((&reload["result"], &reload["failed_at"]), (&json!("applied"), &Value::Null), "{reload}");
    assert!(loaded_at() >= started);
}
