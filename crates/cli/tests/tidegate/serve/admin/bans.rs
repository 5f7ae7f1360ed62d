//! A banned client gets 403, from the acknowledgement until the ban ends.

use std::io::Read;
use std::process::Command;

use tidegate_testkit::client::request;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::PolicyFile;
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::eventually_blocking;

use super::AdminGateway;
use crate::program::{serve, serve_at};

#[test]
fn ban_applies_at_once_and_after_a_restart_until_it_is_removed() {
    let gateway = AdminGateway::start("");
    assert_eq!(gateway.get("X-User: bob\r\n"), 200);
    let made = gateway.send("POST", "/v1/bans", r#"{"subject":"user:bob","for":"1d","reason":"abuse"}"#);
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(gateway.get("X-User: bob\r\n"), 403);
    assert_eq!(gateway.get("X-User: carol\r\n"), 200);
    let restart = gateway.send("POST", "/v1/bans", r#"{"subject":"user:bob","for":"2d","reason":"again"}"#);
    assert_eq!(restart.status, 200, "the new ban replaces the first");
    gateway.server.signal("-KILL");
    let gateway = gateway.restart();
    assert_eq!(gateway.get("X-User: bob\r\n"), 403, "the ban survives a kill");
    let bans = gateway.send("GET", "/v1/bans", "").json();
    assert_eq!(bans["bans"].as_array().unwrap().len(), 1);
    let ban = &bans["bans"][0];
    assert_eq!((&ban["subject"], &ban["reason"]), (&"user:bob".into(), &"again".into()));
    assert_eq!(ban["until"].as_u64().unwrap() - ban["since"].as_u64().unwrap(), 2 * 86_400);
    assert_eq!(gateway.send("DELETE", "/v1/bans", r#"{"subject":"user:bob"}"#).status, 200);
    assert_eq!(gateway.get("X-User: bob\r\n"), 200);
    assert_eq!(gateway.send("DELETE", "/v1/bans", r#"{"subject":"user:bob"}"#).status, 404);
    let gateway = gateway.restart();
    assert_eq!(gateway.get("X-User: bob\r\n"), 200, "the removal survives a restart");
}

#[test]
fn ban_changes_are_logged_without_the_api_key() {
    let gateway = AdminGateway::start("");
    let ban = r#"{"subject":"api_key:sk_live_4f9a8b7c6d5e","for":"1d","reason":"abuse \"again\""}"#;
    assert_eq!(gateway.send("POST", "/v1/bans", ban).status, 201);
    let line = gateway.server.wait_for_log("ban_added");
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let subject = line["subject"].as_str().unwrap();
    assert!(!subject.contains("4f9a8b7c6d5e"), "{line}");
    assert_eq!(line["message"], format!("ban added: {subject} for 1d (reason: abuse \"again\")"));
    let old = r#"{"subject":"api_key:sk_live_4f9a8b7c6d5e"}"#;
    assert_eq!(gateway.send("DELETE", "/v1/bans", old).status, 200);
    gateway.server.wait_for_log("ban_removed");
}

#[test]
fn ban_with_a_duration_ends() {
    let gateway = AdminGateway::start("");
    assert_eq!(gateway.send("POST", "/v1/bans", r#"{"subject":"user:bob","for":"300ms"}"#).status, 201);
    // On a slow machine the ban may have ended already.
    eventually_blocking("the ban ends", || gateway.get("X-User: bob\r\n") != 403);
    assert_eq!(gateway.send("GET", "/v1/bans", "").json()["bans"], serde_json::json!([]));
    assert_eq!(gateway.send("DELETE", "/v1/bans", r#"{"subject":"user:bob"}"#).status, 404);
}

#[test]
fn ban_of_a_network_or_api_key_applies_and_never_shows_the_key() {
    let gateway = AdminGateway::start("bans: { networks: [192.0.2.0/24] }\n");
    let key = "sk_live_4f9a8b7c6d5e";
    let made = gateway.send("POST", "/v1/bans", &format!(r#"{{"subject":"api_key:{key}"}}"#));
    assert_eq!(made.status, 201);
    let shown = made.json()["subject"].as_str().unwrap().to_owned();
    assert_eq!(gateway.get(&format!("X-API-Key: {key}\r\n")), 403);
    assert_eq!(gateway.get("X-API-Key: another\r\n"), 200);
    let listed = gateway.send("GET", "/v1/bans", "").text();
    assert!(listed.contains(&shown) && !listed.contains(key) && !made.text().contains(key), "{listed}");
    let file = std::fs::read(gateway.policy.path().replace(".yaml", ".state/tidegate.redb")).unwrap();
    assert!(!file.windows(key.len()).any(|window| window == key.as_bytes()), "the key is not stored");
    let body = serde_json::json!({ "subject": shown }).to_string();
    assert_eq!(gateway.send("DELETE", "/v1/bans", &body).status, 200, "by its hash");
    assert_eq!(gateway.get(&format!("X-API-Key: {key}\r\n")), 200);

    let sources = gateway.send("GET", "/v1/bans", "").json();
    assert_eq!(sources["bans"][0]["source"], "policy");
    let in_policy = gateway.send("DELETE", "/v1/bans", r#"{"subject":"192.0.2.0/24"}"#);
    assert_eq!((in_policy.status, &in_policy.json()["error"]), (409, &"in_policy".into()));
    assert_eq!(gateway.send("POST", "/v1/bans", r#"{"subject":"127.0.0.0/8"}"#).status, 201);
    assert_eq!(gateway.get(""), 403);
    assert_eq!(request(&gateway.admin, "GET", "/healthz", "", "").status, 200, "operators are not banned");
}

#[test]
fn ban_commands_add_list_and_remove_bans() {
    let gateway = AdminGateway::start("bans: { networks: [198.51.100.0/24] }\n");
    let (done, printed, error) = gateway.command(&[
        "ban",
        "user:bob",
        "203.0.113.0/24",
        "2001:db8::7",
        "--for",
        "1h",
        "--reason",
        "it \u{1b}[31mhurts",
    ]);
    assert!(!done && error.contains("one line"), "{printed}{error}");
    let (done, printed, error) = gateway.command(&[
        "ban",
        "user:bob",
        "203.0.113.0/24",
        "2001:db8::7",
        "--for",
        "1h",
        "--reason",
        "it hurts",
    ]);
    assert!(done, "{error}");
    assert_eq!(
        printed,
        "user:bob is banned for 1h\nip:203.0.113.0/24 is banned for 1h\nip:2001:db8::/64 is banned for 1h\n"
    );
    assert_eq!(gateway.get("X-User: bob\r\n"), 403);
    let (_, table, _) = gateway.command(&["bans"]);
    assert!(table.starts_with("SUBJECT             SOURCE    LEFT       REASON\n"), "{table}");
    assert!(table.contains("\nuser:bob            operator  "), "{table}");
    assert!(table.contains("\nip:198.51.100.0/24  policy    permanent\n"), "{table}");
    let (_, json, _) = gateway.command(&["bans", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 4);

    let (_, sets, _) = gateway.command(&["bans", "--format", "nft"]);
    let file = gateway.policy.path().replace("policy.yaml", "bans.nft");
    std::fs::write(&file, &sets).unwrap();
    // Only root may check rules in the network of the machine; any user may in a network namespace.
    let commands = [&["/usr/sbin/nft"][..], &["unshare", "-rn", "/usr/sbin/nft"]];
    let checked = commands.map(|command_line| {
        Command::new(command_line[0]).args(&command_line[1..]).args(["-c", "-f", &file]).output().unwrap()
    });
    assert!(checked.iter().any(|checked| checked.status.success()), "{sets}\n{checked:?}");
    assert!(sets.contains("198.51.100.0/24") && sets.contains("2001:db8::/64 timeout "), "{sets}");

    let (done, printed, _) = gateway.command(&["unban", "user:bob"]);
    assert_eq!((done, printed.as_str()), (true, "ban removed: user:bob\n"));
    let (done, _, error) = gateway.command(&["unban", "user:bob"]);
    assert!(!done && error.contains("user:bob is not banned") && error.contains("hint:"), "{error}");
}

#[test]
fn acknowledged_bans_survive_a_takeover() {
    let port = free_address().port();
    let socket = format!("{}/over-{}.socket", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let text = format!(
        "upstreams: {{ api: {{ servers: ['http://{}'] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         admin: {{ listen: '127.0.0.1:{port}' }}\n\
         clients: {{ user: {{ header: X-User }}, identify_by: [user, ip], ip: {{ trusted_proxies: 127.0.0.1 }} }}\n\
         rate_limits: {{ default: {{ requests: 5000, window: 1h }} }}\n",
        echo()
    );
    let policy = PolicyFile::new(&text);
    let args = ["--config", &policy.path(), "--takeover", &socket];
    let mut old = serve(&args);
    let address = old.address.clone();
    let token = std::fs::read_to_string(policy.path().replace(".yaml", ".state/admin.token")).unwrap();
    let token = format!("Authorization: Bearer {}\r\n", token.trim());
    let admin = format!("127.0.0.1:{port}");
    for round in 0..3 {
        // A thread adds bans without a pause while another process takes over.
        let banning = std::thread::spawn({
            let (admin, token) = (admin.clone(), token.clone());
            move || {
                let mut banned = Vec::new();
                for number in 0..60 {
                    let subject = format!("user:{round}-{number}");
                    let body = format!(r#"{{"subject":"{subject}"}}"#);
                    // A request that gets 503 during the takeover is sent again.
                    loop {
                        let response =
                            tidegate_testkit::client::try_request(&admin, "POST", "/v1/bans", &token, &body);
                        match response.map(|response| response.status) {
                            Ok(200 | 201) => break banned.push(subject),
                            Ok(503) | Err(_) => std::thread::yield_now(),
                            Ok(other) => panic!("{other}"),
                        }
                    }
                }
                banned
            }
        });
        let next = serve_at(&address, &args);
        assert_eq!(old.wait().code(), Some(0));
        for subject in banning.join().unwrap() {
            let user = subject.replace("user:", "X-User: ");
            assert_eq!(request(&address, "GET", "/", &format!("{user}\r\n"), "").status, 403, "{subject}");
        }
        old = next;
    }
}

#[test]
fn aborted_takeover_keeps_bans_and_accepts_changes_again() {
    let socket = format!("{}/gone-{}.socket", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let policy = PolicyFile::new(&super::policy_text(""));
    let server = serve(&["--config", &policy.path(), "--takeover", &socket]);
    let (admin, token) = super::admin_of(&server, &policy);
    let gateway = AdminGateway { server, policy, admin, token };
    assert_eq!(gateway.send("POST", "/v1/bans", r#"{"subject":"user:bob"}"#).status, 201);
    let mut successor = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    // The successor has received the sockets and the state file now.
    successor.read_exact(&mut [0; 8]).unwrap();
    assert_eq!(
        gateway.send("POST", "/v1/bans", r#"{"subject":"user:eve"}"#).status,
        503,
        "the successor owns the state file"
    );
    assert_eq!(gateway.get("X-User: bob\r\n"), 403);
    drop(successor);
    let ban_eve = || gateway.send("POST", "/v1/bans", r#"{"subject":"user:eve"}"#).status;
    eventually_blocking("bans are accepted again", || ban_eve() != 503);
    assert_eq!((gateway.get("X-User: bob\r\n"), gateway.get("X-User: eve\r\n")), (403, 403));
}

#[test]
fn lock_out_is_listed_survives_a_restart_and_can_be_removed() {
    let rule = "{ name: login, match: { path: / }, per: ip, requests: 1, window: 1h, penalty: { after: 1, for: 1h, doubling_to: 1d } }";
    let policy =
        super::policy_text("").replace("rate_limits: {", &format!("rate_limits: {{ rules: [{rule}],"));
    let mut gateway = AdminGateway::serve(PolicyFile::new(&policy));
    let client = "X-Forwarded-For: 203.0.113.9\r\n";
    assert_eq!((gateway.get(client), gateway.get(client)), (200, 429));
    let listed = |gateway: &AdminGateway| gateway.send("GET", "/v1/bans", "").json()["bans"].clone();
    let one = listed(&gateway);
    assert_eq!(one.as_array().unwrap().len(), 1, "{one}");
    let penalty = &one[0];
    assert_eq!((&penalty["kind"], &penalty["source"]), (&"penalty".into(), &"login".into()));
    assert_eq!(penalty["subject"], "ip:203.0.113.9");
    gateway.server.signal("-TERM");
    assert_eq!(gateway.server.wait().code(), Some(0));
    let gateway = gateway.restart();
    assert_eq!(listed(&gateway)[0]["subject"], "ip:203.0.113.9");
    assert_eq!(gateway.get(client), 429, "although the counter was reset");
    let (_, sets, _) = gateway.command(&["bans", "--format", "nft"]);
    assert!(!sets.contains("add element"), "{sets}");
    let (_, sets, _) = gateway.command(&["bans", "--format", "nft", "--lock-outs"]);
    assert!(sets.contains("{\n  203.0.113.9/32 timeout "), "{sets}");
    let (done, printed, error) = gateway.command(&["unban", "203.0.113.9"]);
    assert!(done, "{printed}{error}");
    assert_eq!(listed(&gateway), serde_json::json!([]));
    assert_eq!(gateway.get(client), 200);
}

#[test]
fn unban_accepts_every_subject_that_bans_prints_and_tells_of_a_full_counter() {
    let rule = "{ name: login, match: { path: / }, per: [ip, user], requests: 1, window: 1h, penalty: { after: 1, for: 1h } }";
    let policy =
        super::policy_text("").replace("rate_limits: {", &format!("rate_limits: {{ rules: [{rule}],"));
    let gateway = AdminGateway::serve(PolicyFile::new(&policy));
    let client = "X-Forwarded-For: 203.0.113.9\r\nX-User: bob\r\n";
    assert_eq!((gateway.get(client), gateway.get(client)), (200, 429));
    let subject = "ip:203.0.113.9+user:bob";
    let (_, printed, _) = gateway.command(&["bans"]);
    assert!(printed.contains(subject), "{printed}");
    let (_, sets, _) = gateway.command(&["bans", "--format", "nft", "--lock-outs"]);
    assert!(!sets.contains("add element"), "the address is not locked out for others: {sets}");
    let (done, printed, error) = gateway.command(&["unban", subject]);
    assert!(done, "{error}");
    assert!(printed.starts_with(&format!("lock-out ended: {subject} under login\n")), "{printed}");
    let reset = format!("tidegate reset {subject} --rule login");
    assert!(printed.contains("counter is still full") && printed.contains(&reset), "{printed}");
    let (_, bans, _) = gateway.command(&["bans"]);
    assert_eq!(bans, "no bans\n");
    assert!(gateway.command(&["reset", subject, "--rule", "login"]).0);
    assert_eq!(gateway.get(client), 200, "as the message says");

    let (done, _, error) = gateway.command(&["unban", "ip:203.0.113.8+user:bob"]);
    assert!(!done && error.contains("ip:203.0.113.8+user:bob is not banned"), "{error}");
    let (done, _, error) = gateway.command(&["ban", subject]);
    assert!(!done && error.contains("one network or one client"), "{error}");
}
