//! The start of the gateway with an admin API: tokens, addresses and state files.

use std::io::{BufReader, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use tidegate_testkit::client::{read_head, request};
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::PolicyFile;

use super::{AdminGateway, policy_text};
use crate::program::{command, run, serve};

fn startup_error(policy: &PolicyFile) -> String {
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--config", &policy.path()]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

/// Writes a token file that only its owner can read.
fn write_token(path: &str, token: &str) {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.unwrap().write_all(token.as_bytes()).unwrap();
}

fn state(policy: &PolicyFile) -> String {
    policy.path().replace(".yaml", ".state")
}

#[test]
fn admin_token_is_created_at_the_first_start_and_shown_once() {
    let gateway = AdminGateway::start("");
    assert!(gateway.server.startup_output.contains(&gateway.token), "{}", gateway.server.startup_output);
    let file = format!("{}/admin.token", state(&gateway.policy));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let (before, gateway) = (gateway.token.clone(), gateway.restart());
    assert_eq!(gateway.token, before);
    assert!(!gateway.server.startup_output.contains(&before), "{}", gateway.server.startup_output);
    assert_eq!(gateway.send("GET", "/v1/status", "").status, 200);
}

#[test]
fn public_admin_address_requires_an_existing_token_file() {
    let text = policy_text("").replace("listen: '127.0.0.1:0'", "listen: '0.0.0.0:0'");
    let policy = PolicyFile::new(&text);
    assert!(startup_error(&policy).contains("token_file"));
    let named = text.replace("'0.0.0.0:0'", "'0.0.0.0:0', token_file: t");
    policy.write(&named);
    let error = startup_error(&policy);
    assert!(error.contains("openssl rand"), "{error}");
    let token = policy.path().replace("policy.yaml", "t");
    write_token(&token, "short\n");
    assert!(startup_error(&policy).contains("fewer than 16"));
    write_token(&token, "0123456789abcdef0123\n");
    let server = serve(&["--config", &policy.path()]);
    let line = server.startup_output.lines().find(|line| line.contains("admin")).unwrap();
    let port = line.split(';').next().unwrap().rsplit(':').next().unwrap();
    let admin = format!("127.0.0.1:{port}");
    assert_eq!(request(&admin, "GET", "/v1/bans", "", "").status, 401);
    let valid = "Authorization: Bearer 0123456789abcdef0123\r\nHost: gateway.internal\r\n";
    assert_eq!(request(&admin, "GET", "/v1/bans", valid, "").status, 200);
}

#[test]
fn admin_address_in_use_fails_the_start_only_if_it_is_configured() {
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = occupied.local_addr().unwrap().to_string();
    let policy = PolicyFile::new(&policy_text("").replace("127.0.0.1:0", &address));
    let error = startup_error(&policy);
    assert!(error.contains(&address) && error.contains("admin.listen"), "{error}");
    // With the default address the start succeeds whether or not the address is free.
    policy.write(&policy_text("").replace("admin: { listen: '127.0.0.1:0' }\n", ""));
    drop(serve(&["--config", &policy.path()]));
    policy.write(&policy_text("").replace("{ listen: '127.0.0.1:0' }", "off"));
    let server = serve(&["--config", &policy.path()]);
    assert!(!server.startup_output.contains("  admin  "), "{}", server.startup_output);
    let output = run(&["bans", "--config", &policy.path()]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("admin: off"));
}

#[test]
fn state_file_damaged_newer_or_in_use_fails_the_start_with_advice() {
    let gateway = AdminGateway::start("");
    gateway.send("POST", "/v1/bans", r#"{"subject":"user:bob"}"#);
    assert!(startup_error(&gateway.policy).contains("in use by another process"));
    let AdminGateway { server, policy, .. } = gateway;
    drop(server);
    let file = format!("{}/tidegate.redb", state(&policy));
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes.truncate(middle);
    for damaged in [&bytes[..], b"", b"not a database"] {
        std::fs::write(&file, damaged).unwrap();
        for _ in 0..2 {
            let error = startup_error(&policy);
            assert!(error.contains("is damaged") && error.contains("Put a backup in its place"), "{error}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), damaged, "the file is unchanged");
    }
    std::fs::remove_file(&file).unwrap();
    let gateway = AdminGateway::serve(policy);
    assert_eq!(gateway.get("X-User: bob\r\n"), 200, "without the file, it starts with no bans");

    let AdminGateway { server, policy, .. } = gateway;
    drop(server);
    let database = redb::Database::open(&file).unwrap();
    let transaction = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    transaction.open_table(meta).unwrap().insert("format", 99).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = startup_error(&policy);
    assert!(error.contains("has format 99") && error.contains("newer tidegate"), "{error}");
}

#[test]
fn admin_command_without_token_or_gateway_names_the_problem() {
    let error_of = |args: &[&str]| {
        let output = command().env("XDG_STATE_HOME", "/nonexistent").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = error_of(&["bans"]);
    assert!(error.contains("no admin token") && error.contains("--config"), "{error}");
    let token = format!("{}/foreign-token-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    write_token(&token, "0123456789abcdef0123");
    let free = free_address();
    let error = error_of(&["bans", "--admin", &format!("http://{free}"), "--token-file", &token]);
    assert!(error.contains("connection refused") && error.contains("start the gateway"), "{error}");
    let gateway = AdminGateway::start("");
    let error = error_of(&["bans", "--admin", &format!("http://{}", gateway.admin), "--token-file", &token]);
    assert!(error.contains("rejects the token in"), "{error}");
    std::fs::remove_file(token).unwrap();
}

#[test]
fn token_file_that_other_users_can_access_is_rejected() {
    let gateway = AdminGateway::start("");
    let file = format!("{}/admin.token", state(&gateway.policy));
    let set_mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
    for mode in [0o644, 0o602, 0o666] {
        set_mode(mode);
        let (is_ok, _, error) = gateway.command(&["status"]);
        assert!(!is_ok && error.contains("other users") && error.contains("chmod 600"), "{error}");
    }
    let AdminGateway { server, policy, .. } = gateway;
    drop(server);
    let error = startup_error(&policy);
    assert!(error.contains("other users") && error.contains("chmod 600"), "{error}");
    set_mode(0o600);
    drop(AdminGateway::serve(policy));
}

#[test]
fn process_on_the_admin_port_without_the_token_does_not_get_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let policy = PolicyFile::new(&policy_text("").replace("127.0.0.1:0", &address.to_string()));
    std::fs::create_dir(state(&policy)).unwrap();
    let token = "0123456789abcdef0123456789abcdef";
    write_token(&format!("{}/admin.token", state(&policy)), token);
    let path = policy.path();
    let commands = std::thread::spawn(move || {
        ["status", "bans", "reload"]
            .map(|name| String::from_utf8(run(&[name, "--config", &path]).stderr).unwrap())
    });
    for _ in 0..3 {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        // It answers whatever it is asked, until the command closes the connection.
        while let Ok(head) = read_head(&mut reader) {
            assert!(!head.contains(token), "{head}");
            let body = "{\"proof\":\"00\"}";
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    }
    for error in commands.join().unwrap() {
        assert!(error.contains("does not have the token") && error.contains("--admin"), "{error}");
    }
}

#[test]
fn command_finds_and_verifies_the_gateway_of_its_policy() {
    let policy = PolicyFile::new(&policy_text("").replace("127.0.0.1:0", &free_address().to_string()));
    let gateway = AdminGateway::serve(policy);
    for name in ["status", "bans", "reload"] {
        let output = run(&[name, "--config", &gateway.policy.path()]);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn command_with_a_policy_that_another_gateway_does_not_have_fails() {
    let address = free_address().to_string();
    let first = AdminGateway::serve(PolicyFile::new(&policy_text("").replace("127.0.0.1:0", &address)));
    let token = format!("{}/admin.token", state(&first.policy));
    let admin = format!("listen: '{address}', token_file: '{token}'");
    let second = PolicyFile::new(&policy_text("").replace("listen: '127.0.0.1:0'", &admin));
    for args in [&["bans"][..], &["reset", "user:bob"], &["ban", "user:bob"]] {
        let output = run(&[args, &["--config", &second.path()]].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&first.policy.path()) && error.contains(&second.path()), "{error}");
        assert!(error.contains(&state(&first.policy)) && error.contains("admin.listen"), "{error}");
    }
    assert_eq!(first.get("X-User: bob\r\n"), 200, "nothing was changed");
    // The same file by another path.
    let link = first.policy.path().replace(".yaml", "-link.yaml");
    std::os::unix::fs::symlink(first.policy.path(), &link).unwrap();
    std::os::unix::fs::symlink(state(&first.policy), link.replace(".yaml", ".state")).unwrap();
    let output = run(&["reset", "user:bob", "--config", &link]);
    assert!(output.status.success(), "{output:?}");
    let reply = first.send("GET", "/v1/bans", "");
    assert_eq!(reply.header("tidegate-policy"), Some(&*first.policy.path()), "{reply:?}");
    assert_eq!(reply.header("tidegate-state"), Some(&*state(&first.policy)), "{reply:?}");
}

#[test]
fn second_process_says_that_it_has_no_admin_api() {
    let policy = PolicyFile::new(&policy_text("").replace("admin: { listen: '127.0.0.1:0' }\n", ""));
    // The default address is in use, by this test or by another process.
    let mut occupied = Vec::new();
    let second = loop {
        occupied.extend(std::net::TcpListener::bind("127.0.0.1:9900").ok());
        let second = serve(&["--config", &policy.path()]);
        if !second.startup_output.contains("  admin      http://") {
            break second;
        }
    };
    let banner = &second.startup_output;
    assert!(banner.contains("  admin      none: cannot listen on 127.0.0.1:9900"), "{banner}");
    assert!(banner.contains("`admin.listen`"), "{banner}");
}

#[test]
fn command_finds_the_gateway_although_its_policy_file_is_invalid_now() {
    let text = policy_text("").replace("127.0.0.1:0", &free_address().to_string());
    let gateway = AdminGateway::serve(PolicyFile::new(&text));
    let status = || run(&["status", "--config", &gateway.policy.path()]);
    for invalid in [
        text.replace("window: 1h", "window: soon"),
        text.replace("rate_limits:", "rate_limit:"),
        format!("{text}clients: {{}}\nbans: {{ file: missing.txt }}\n"),
        format!("{text}broken: [{{ this is no YAML"),
    ] {
        gateway.policy.write(&invalid);
        let output = status();
        assert!(output.status.success(), "{invalid}: {output:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains("(ready)"));
    }
    let errors = String::from_utf8(status().stderr).unwrap();
    assert!(errors.contains("is invalid") && errors.contains("tidegate check"), "{errors}");
    // What says where the gateway is must be valid.
    gateway.policy.write(&text.replace("admin: { listen:", "admin: { listne:"));
    let output = status();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("did you mean `listen`?") && errors.contains("--admin URL"), "{errors}");
    let token = format!("{}/admin.token", state(&gateway.policy));
    let url = format!("http://{}", gateway.admin);
    let args = ["status", "--config", &gateway.policy.path(), "--admin", &url, "--token-file", &token];
    assert!(run(&args).status.success(), "the policy is not needed");
}

#[test]
fn state_file_deleted_or_replaced_loses_no_acknowledged_change() {
    let gateway = AdminGateway::start("");
    let ban = |gateway: &AdminGateway, user: &str| {
        gateway.send("POST", "/v1/bans", &format!(r#"{{"subject":"user:{user}"}}"#)).status
    };
    let file = format!("{}/tidegate.redb", state(&gateway.policy));
    assert_eq!(ban(&gateway, "bob"), 201);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(ban(&gateway, "eve"), 201);
    let gateway = gateway.restart();
    for user in ["bob", "eve"] {
        assert_eq!(gateway.get(&format!("X-User: {user}\r\n")), 403, "{user}");
    }
    // Another file, even a valid one, does not have the acknowledged changes.
    let copy = format!("{file}.copy");
    std::fs::copy(&file, &copy).unwrap();
    let original = format!("{file}.original");
    std::fs::rename(&file, &original).unwrap();
    std::fs::rename(&copy, &file).unwrap();
    let response = gateway.send("POST", "/v1/bans", r#"{"subject":"user:mallory"}"#);
    assert_eq!(response.status, 500, "{response:?}");
    assert!(response.text().contains("was deleted or replaced"), "{response:?}");
    std::fs::rename(&original, &file).unwrap();
    assert_eq!(ban(&gateway, "mallory"), 201);
    let gateway = gateway.restart();
    assert_eq!(gateway.get("X-User: mallory\r\n"), 403);
}
