//! What keeps it from starting, what does not, and what it says.

use std::os::unix::fs::PermissionsExt;

use tidegate_testkit::client::request;
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::PolicyFile;

use super::{AdminGateway, policy_text};
use crate::program::{command, run, serve};

fn refused(policy: &PolicyFile) -> String {
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--config", &policy.path()]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

fn state(policy: &PolicyFile) -> String {
    policy.path().replace(".yaml", ".state")
}

#[test]
fn a_token_is_made_at_the_first_start_and_shown_once() {
    let gate = AdminGateway::start("");
    assert!(gate.server.welcome.contains(&gate.token), "{}", gate.server.welcome);
    let file = format!("{}/admin.token", state(&gate.policy));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let (before, gate) = (gate.token.clone(), gate.again());
    assert_eq!(gate.token, before);
    assert!(!gate.server.welcome.contains(&before), "{}", gate.server.welcome);
    assert_eq!(gate.ask("GET", "/v1/status", "").status, 200);
}

#[test]
fn a_public_address_wants_a_token_that_is_there() {
    let text = policy_text("").replace("listen: '127.0.0.1:0'", "listen: '0.0.0.0:0'");
    let policy = PolicyFile::new(&text);
    assert!(refused(&policy).contains("token_file"));
    let named = text.replace("'0.0.0.0:0'", "'0.0.0.0:0', token_file: t");
    policy.write(&named);
    let error = refused(&policy);
    assert!(error.contains("openssl rand"), "{error}");
    let token = policy.path().replace("policy.yaml", "t");
    std::fs::write(&token, "short\n").unwrap();
    assert!(refused(&policy).contains("fewer than 16"));
    std::fs::write(&token, "0123456789abcdef0123\n").unwrap();
    let server = serve(&["--config", &policy.path()]);
    let line = server.welcome.lines().find(|line| line.contains("admin")).unwrap();
    let port = line.split(';').next().unwrap().rsplit(':').next().unwrap();
    let admin = format!("127.0.0.1:{port}");
    assert_eq!(request(&admin, "GET", "/v1/bans", "", "").status, 401);
    let let_in = "Authorization: Bearer 0123456789abcdef0123\r\nHost: gateway.internal\r\n";
    assert_eq!(request(&admin, "GET", "/v1/bans", let_in, "").status, 200);
}

#[test]
fn a_taken_address_stops_it_only_if_somebody_chose_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let policy = PolicyFile::new(&policy_text("").replace("127.0.0.1:0", &address));
    let error = refused(&policy);
    assert!(error.contains(&address) && error.contains("admin.listen"), "{error}");
    // Nobody chose the usual one; whether it is free on this machine does not matter.
    policy.write(&policy_text("").replace("admin: { listen: '127.0.0.1:0' }\n", ""));
    drop(serve(&["--config", &policy.path()]));
    policy.write(&policy_text("").replace("{ listen: '127.0.0.1:0' }", "off"));
    let server = serve(&["--config", &policy.path()]);
    assert!(!server.welcome.contains("  admin  "), "{}", server.welcome);
    let asked = run(&["bans", "--config", &policy.path()]);
    assert!(String::from_utf8(asked.stderr).unwrap().contains("admin: off"));
}

#[test]
fn a_damaged_file_a_newer_one_and_one_in_use_are_refused_with_what_to_do() {
    let gate = AdminGateway::start("");
    gate.ask("POST", "/v1/bans", r#"{"subject":"user:bob"}"#);
    assert!(refused(&gate.policy).contains("in use by another process"));
    let AdminGateway { server, policy, .. } = gate;
    drop(server);
    let file = format!("{}/tidegate.redb", state(&policy));
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes.truncate(middle);
    for damaged in [&bytes[..], b"", b"not a database"] {
        std::fs::write(&file, damaged).unwrap();
        for _ in 0..2 {
            let error = refused(&policy);
            assert!(error.contains("is damaged") && error.contains("Put a backup in its place"), "{error}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), damaged, "it is left as it is");
    }
    std::fs::remove_file(&file).unwrap();
    let gate = AdminGateway::serve(policy);
    assert_eq!(gate.get("X-User: bob\r\n"), 200, "moved away, it starts with none");

    let AdminGateway { server, policy, .. } = gate;
    drop(server);
    let database = redb::Database::open(&file).unwrap();
    let transaction = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    transaction.open_table(meta).unwrap().insert("format", 99).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = refused(&policy);
    assert!(error.contains("has format 99") && error.contains("newer tidegate"), "{error}");
}

#[test]
fn commands_say_what_is_missing() {
    let said = |args: &[&str]| {
        let output = command().env("XDG_STATE_HOME", "/nonexistent").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = said(&["bans"]);
    assert!(error.contains("there is no token") && error.contains("--config"), "{error}");
    let token = format!("{}/foreign-token-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    std::fs::write(&token, "0123456789abcdef0123").unwrap();
    let free = free_address();
    let error = said(&["bans", "--admin", &format!("http://{free}"), "--token-file", &token]);
    assert!(error.contains("nothing listens") && error.contains("is the gateway running?"), "{error}");
    let gate = AdminGateway::start("");
    let error = said(&["bans", "--admin", &format!("http://{}", gate.admin), "--token-file", &token]);
    assert!(error.contains("invalid bearer token"), "{error}");
    std::fs::remove_file(token).unwrap();
}
