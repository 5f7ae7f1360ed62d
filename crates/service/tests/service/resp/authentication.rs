//! Tokens, and what changes with them.

use std::collections::BTreeMap;

use tidegate_policy::{ActivePolicy, compile};
use tidegate_telemetry::Protocol;

use super::{Reply, RespClient, encode, error, integers, status};
use crate::fixture::TestService;

const NO_AUTH: &str = "NOAUTH Authentication required.";
const POLICY: &str = "service: { resp: { address: \"0.0.0.0:6380\", token_file: t }, \
                      http: { address: \"0.0.0.0:8082\", token_file: t } }";

fn files(token: &str) -> BTreeMap<String, Vec<u8>> {
    BTreeMap::from([("t".to_owned(), token.as_bytes().to_vec())])
}

fn start() -> TestService {
    TestService::start_with_files(POLICY, &files("first-token-0123456789-0123456789"))
}

/// Activates another policy, as a reload does.
fn reload(service: &TestService, policy: &str, token: &str) {
    let plan = compile("policy.yaml", policy.as_bytes(), &files(token)).expect("a valid policy").plan;
    let prepared = service.limiter.prepare(ActivePolicy::new(plan)).expect("few limits");
    service.limiter.activate(prepared);
}

#[test]
fn token_with_any_user_name_authenticates() {
    let service = start();
    for command in ["AUTH", "AUTH default", "AUTH joe", "HELLO 2 AUTH joe"] {
        let mut client = RespClient::connect(&service);
        assert_eq!(client.call("CL.THROTTLE k 0 1 1 0"), error(NO_AUTH));
        assert_eq!(client.call("PING"), status("PONG"));
        assert!(
            matches!(client.call(&format!("{command} wrong")), Reply::Error(text) if text.starts_with("WRONGPASS"))
        );
        let accepted = client.call(&format!("{command} first-token-0123456789-0123456789"));
        assert!(!matches!(accepted, Reply::Error(_)), "{command}: {accepted:?}");
        assert_eq!(client.call("CL.THROTTLE k 0 1 1 0"), integers(&[0, 1, 1, -1, 0]));
    }
}

#[test]
fn commands_after_reset_in_the_same_packet_are_not_executed() {
    let service = start();
    let mut client = RespClient::connect(&service);
    let commands =
        ["AUTH first-token-0123456789-0123456789", "CL.THROTTLE k 0 1 1 0", "RESET", "CL.THROTTLE k 0 1 1 0"];
    client.send(commands.map(encode).concat());
    assert_eq!(client.reply(), status("OK"));
    assert_eq!(client.reply(), integers(&[0, 1, 1, -1, 0]));
    assert_eq!(client.reply(), status("RESET"));
    assert_eq!(client.reply(), error(NO_AUTH));
}

#[test]
fn token_changed_by_a_reload_is_required_on_open_connections() {
    let service = start();
    let mut client = RespClient::connect(&service);
    client.call("AUTH first-token-0123456789-0123456789");
    reload(&service, POLICY, "first-token-0123456789-0123456789");
    assert_eq!(client.call("ECHO a"), super::bulk("a"), "the token is the same");
    reload(&service, POLICY, "second-token-0123456789-0123456789");
    assert_eq!(client.call("CL.THROTTLE k 0 1 1 0"), error(NO_AUTH));
    assert_eq!(client.call("AUTH second-token-0123456789-0123456789"), status("OK"));
    assert_eq!(client.call("ECHO a"), super::bulk("a"));
}

#[test]
fn exec_refused_for_lack_of_the_token_ends_the_transaction() {
    let service = start();
    let mut client = RespClient::connect(&service);
    client.call("AUTH first-token-0123456789-0123456789");
    assert_eq!(client.call("MULTI"), status("OK"));
    assert_eq!(client.call("CL.THROTTLE k 0 1 60"), status("QUEUED"));
    reload(&service, POLICY, "second-token-0123456789-0123456789");
    assert_eq!(client.call("EXEC"), error(NO_AUTH));
    assert_eq!(client.call("AUTH second-token-0123456789-0123456789"), status("OK"));
    let decided = client.call("CL.THROTTLE k 0 1 60");
    assert_eq!(decided, integers(&[0, 1, 0, -1, 60]), "nothing was executed, and nothing is queued");
}

#[test]
fn listener_whose_token_a_reload_removes_requires_the_last_one() {
    let service = start();
    for policy in ["{}", "service: { resp: \"127.0.0.1:6380\", http: \"127.0.0.1:8082\" }"] {
        reload(&service, policy, "");
        let mut client = RespClient::connect(&service);
        assert_eq!(client.call("ECHO a"), error(NO_AUTH), "{policy}");
        assert_eq!(client.call("AUTH first-token-0123456789-0123456789"), status("OK"));
        assert_eq!(client.call("ECHO a"), super::bulk("a"));
        let response = http_check(&service);
        assert!(response.starts_with("HTTP/1.1 401"), "{response}");
    }
}

#[test]
fn worker_that_was_idle_while_the_token_changed_does_not_accept_the_first_one() {
    let service = start();
    reload(&service, POLICY, "second-token-0123456789-0123456789");
    reload(&service, "{}", "");
    let mut client = RespClient::connect(&service);
    let refused = client.call("AUTH first-token-0123456789-0123456789");
    assert!(matches!(&refused, Reply::Error(text) if text.starts_with("WRONGPASS")), "{refused:?}");
    assert_eq!(client.call("AUTH second-token-0123456789-0123456789"), status("OK"));
    assert!(http_check(&service).starts_with("HTTP/1.1 401"));
}

#[test]
fn open_connections_are_counted_until_they_are_closed() {
    let service = start();
    let open = || {
        let metrics = service.metrics();
        assert!(!metrics.contains("tidegate_responses_total{code=\"2xx\",protocol=\"resp\"}"), "no statuses");
        let sample = "tidegate_connections_open{protocol=\"resp\"} ";
        metrics.lines().find_map(|line| line.strip_prefix(sample)?.parse::<u64>().ok()).unwrap()
    };
    let mut clients: Vec<_> = (0..3).map(|_| RespClient::connect(&service)).collect();
    for client in &mut clients {
        client.call("PING");
    }
    assert_eq!(open(), 3);
    drop(clients);
    tidegate_testkit::wait::eventually_blocking("the connections are closed", || open() == 0);
}

fn http_check(service: &TestService) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(service.address(Protocol::Http)).unwrap();
    let body = "{\"rule\":\"default\",\"client\":\"user:bob\"}";
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn long_command_before_authentication_closes_the_connection() {
    let service = start();
    let mut client = RespClient::connect(&service);
    client.send(b"*2\r\n$4\r\nECHO\r\n$60000\r\n");
    client.send(vec![b'x'; 20_000]);
    assert_eq!(client.reply(), error("ERR Protocol error: too big command before authentication"));
    assert!(client.is_closed());
}
