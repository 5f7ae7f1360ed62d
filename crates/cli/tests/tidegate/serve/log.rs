//! The log of a running gateway: lines of JSON without secrets.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;

use serde_json::Value;
use tidegate_testkit::client::{Connection, FrameClient, PING, get};
use tidegate_testkit::port::free_address;
use tidegate_testkit::process::{PolicyFile, Tidegate};
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::{DEADLINE, eventually_some};

use crate::program::{command, run, serve};

const KEY: &str = "sk_live_51H_very_secret_indeed";

fn policy(upstream: &str, log: &str) -> String {
    format!(
        "upstreams: {{ api: {{ servers: [{upstream}] }} }}\nroutes: [{{ path: /**, upstream: api }}]\n\
         clients: {{ identify_by: [user, ip], user: {{ header: X-User-Id }}, ip: {{ trusted_proxies: 127.0.0.1 }} }}\n\
         rate_limits: {{ default: {{ requests: 3, window: 1h, algorithm: sliding_window_log }} }}\nlog: {log}\n\
         admin: off\n"
    )
}

/// Waits until the file has `count` lines, and returns all of them.
pub(crate) fn lines(path: &str, count: usize) -> Vec<Value> {
    // Another process writes the file.
    let text = eventually_some(&format!("{path} has {count} lines"), || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        (text.lines().count() >= count && text.ends_with('\n')).then_some(text)
    });
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    text.lines().map(parse).collect()
}

#[test]
fn log_lines_of_hostile_requests_stay_json_and_omit_the_api_key() {
    let file = PolicyFile::new(&policy(&format!("http://{}", echo()), "{ access: all, to: access.log }"));
    let log = file.beside("access.log");
    let mut server = serve(&["--config", &file.path()]);
    let hostile = [
        format!(
            "GET /{KEY}/x?key={KEY} HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nConnection: close\r\n\r\n"
        ),
        format!(
            "GET /%0d%0a%1b%5b31m%22%7d HTTP/1.1\r\nHost: a\r\nX-API-Key: {KEY}\r\nConnection: close\r\n\r\n"
        ),
        "GET /\"}{ HTTP/1.1\r\nHost: a\r\nX-User-Id: \"\\\t\u{9b}31m\u{202e}\r\nConnection: close\r\n\r\n"
            .to_owned(),
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nCookie: s={KEY}\r\nConnection: close\r\n\r\n"
        ),
        format!("GET / HTTP/1.1\r\nHost: b\r\nHost: {KEY}\r\nX-API-Key: {KEY}\r\nConnection: close\r\n\r\n"),
    ];
    for request in &hostile {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    }
    server.signal("-TERM");
    assert!(server.wait().success());
    let lines = lines(&log, hostile.len() + 3);
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(
        (events[0], events[events.len() - 2], events[events.len() - 1]),
        ("started", "stopping", "stopped")
    );
    assert_eq!(events.iter().filter(|event| **event == "request").count(), hostile.len());
    let text = std::fs::read_to_string(log).unwrap();
    assert!(!text.contains("very_secret"), "{text}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}

#[test]
fn response_of_the_gateway_has_the_id_of_its_log_line() {
    let file = PolicyFile::new(&policy(
        &format!("http://{}", free_address()),
        "{ access: all, rejected: all, to: a.log }",
    ));
    let server = serve(&["--config", &file.path()]);
    let mut responses: Vec<_> = (0..4).map(|_| get(&server.address, "")).collect();
    responses.push(get(&server.address, "X-Request-Id: of-the-proxy\r\n"));
    responses.push(get(&server.address, "Host: two\r\n"));
    responses.push(get(&server.address, "No header\r\n"));
    let statuses: Vec<_> = responses.iter().map(|response| response.status).collect();
    assert_eq!(statuses, [502, 502, 502, 429, 429, 400, 400]);
    let ids = responses.iter().map(|response| response.header("x-request-id").unwrap());
    let expected: BTreeMap<_, _> = ids.map(str::to_owned).zip(statuses.clone()).collect();
    assert!(expected.contains_key("of-the-proxy") && expected.len() == statuses.len(), "{expected:?}");
    let logged = eventually_some("a line for each response", || {
        let text = std::fs::read_to_string(file.beside("a.log")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let requests = lines.filter(|line| line["event"] == "request");
        let logged: BTreeMap<_, _> = requests
            .map(|line| {
                (
                    line["id"].as_str().unwrap().to_owned(),
                    u16::try_from(line["status"].as_u64().unwrap()).unwrap(),
                )
            })
            .collect();
        (logged.len() == statuses.len()).then_some(logged)
    });
    assert_eq!(logged, expected);
}

#[test]
fn log_file_is_reopened_at_sighup_and_sampling_changes_with_a_reload() {
    let upstream = format!("http://{}", echo());
    let file = PolicyFile::new(&policy(&upstream, "{ access: all, to: access.log }"));
    let (log, moved) = (file.beside("access.log"), file.beside("access.log.1"));
    let server = serve(&["--config", &file.path()]);
    get(&server.address, "");
    assert_eq!(lines(&log, 2)[1]["event"], "request");
    std::fs::rename(&log, &moved).unwrap();
    server.signal("-HUP");
    assert_eq!(lines(&log, 1)[0]["event"], "reloaded");
    file.write(&policy(&upstream, "{ rejected: all, to: access.log }"));
    assert_eq!(lines(&log, 2)[1]["details"].as_array().unwrap().len(), 1);
    let mut connection = Connection::open(&server.address).unwrap();
    for _ in 0..4 {
        connection.get("").unwrap();
    }
    let line = &lines(&log, 3)[2];
    assert_eq!((&line["decision"], &line["remaining"]), (&"rejected".into(), &0.into()));
}

#[test]
fn log_file_that_cannot_be_opened_fails_the_start() {
    let file = PolicyFile::new(&policy("http://127.0.0.1:1", "{ to: nowhere/access.log }"));
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--config", &file.path()]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && error.contains("nowhere/access.log") && error.contains("log.to"),
        "{error}"
    );
}

#[test]
fn log_on_stdout_is_lines_of_json_only() {
    let file = PolicyFile::new(&policy(&format!("http://{}", echo()), "{ access: all, to: stdout }"));
    let server = Tidegate::start_logging(command().args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--config",
        &file.path(),
    ]));
    get(&server.address, "");
    let line: Value = serde_json::from_str(&server.wait_for_log("\"request\"")).unwrap();
    assert_eq!(line["status"], 200);
}

#[test]
fn dependency_warnings_are_lines_of_json_and_limited_in_number() {
    let file = PolicyFile::new(&policy(&format!("http://{}", echo()), "{ to: access.log }"));
    let log = file.beside("access.log");
    let mut server = serve(&["--config", &file.path()]);
    let mut client = FrameClient::open(&server.address);
    // h2 logs a warning for each.
    let acknowledged = 1;
    for _ in 0..200 {
        client.send(PING, acknowledged, 0, b"\x1b[31mbad").unwrap();
    }
    client.send(PING, 0, 0, b"answered").unwrap();
    while client.read().unwrap().0 != PING {}
    drop(client);
    server.signal("-TERM");
    assert!(server.wait().success());
    let lines = lines(&log, 63);
    let warnings: Vec<_> = lines.iter().filter(|line| line["event"] == "dependency_log").collect();
    assert_eq!((lines.len(), warnings.len()), (63, 60));
    assert_eq!(
        (&warnings[0]["level"], &warnings[0]["target"]),
        (&"warn".into(), &"h2::proto::ping_pong".into())
    );
    assert!(warnings[0]["message"].as_str().unwrap().starts_with("recv PING ack"), "{}", warnings[0]);
}

#[test]
fn log_file_is_created_without_access_for_other_users() {
    use std::os::unix::fs::PermissionsExt;
    let file = PolicyFile::new(&policy(&format!("http://{}", echo()), "{ access: all, to: access.log }"));
    let _server = serve(&["--config", &file.path()]);
    let mode = std::fs::metadata(file.beside("access.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "{mode:o}");
}
