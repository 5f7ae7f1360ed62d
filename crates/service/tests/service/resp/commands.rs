//! Commands, their replies and errors.

use tidegate_core::TimeSpan;

use super::{Reply, RespClient, bulk, error, integers, status};
use crate::fixture::TestService;

const POLICY: &str = "rate_limits: { default: { requests: 3, window: 1m, algorithm: token_bucket } }";

#[test]
fn connection_commands_reply_as_redis() {
    let service = TestService::start(POLICY);
    let mut client = RespClient::connect(&service);
    let cases = [
        ("PING", status("PONG")),
        ("ping hello", bulk("hello")),
        ("PING a b", error("ERR wrong number of arguments for 'ping' command")),
        ("ECHO hello", bulk("hello")),
        ("ECHO", error("ERR wrong number of arguments for 'echo' command")),
        ("SELECT 0", status("OK")),
        ("SELECT 1", error("ERR DB index is out of range")),
        ("SELECT x", error("ERR value is not an integer or out of range")),
        ("CLIENT GETNAME", Reply::Null),
        ("CLIENT SETNAME app", status("OK")),
        ("CLIENT GETNAME", bulk("app")),
        ("CLIENT SETINFO LIB-NAME redis-py", status("OK")),
        ("CLIENT NO-EVICT ON", status("OK")),
        ("CLIENT NOPE", error("ERR unknown subcommand or wrong number of arguments for 'client|nope'")),
        ("COMMAND COUNT", Reply::Integer(19)),
        ("COMMAND DOCS", Reply::Array(Vec::new())),
        ("COMMAND INFO nope", Reply::Array(vec![Reply::Null])),
        ("CONFIG GET save", Reply::Array(Vec::new())),
        ("CONFIG SET save x", error("ERR only CONFIG GET is supported; settings are in the policy")),
        (
            "AUTH secret",
            error(
                "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
            ),
        ),
        ("GET a b", error("ERR unknown command 'GET', with args beginning with: 'a' 'b' ")),
        ("RESET", status("RESET")),
        ("CLIENT GETNAME", Reply::Null),
    ];
    for (command, expected) in cases {
        assert_eq!(client.call(command), expected, "{command}");
    }
    let Reply::Bulk(info) = client.call("INFO") else { panic!() };
    assert!(info.contains("loading:0"));
    let Reply::Integer(id) = client.call("CLIENT ID") else { panic!() };
    assert!(matches!(client.call("CLIENT LIST"), Reply::Bulk(list) if list.contains(&format!("id={id} "))));
    let Reply::Array(commands) = client.call("COMMAND") else { panic!() };
    assert_eq!(commands.len(), 19);
    assert_eq!(client.call("QUIT"), status("OK"));
    assert!(client.is_closed());
}

#[test]
fn error_reply_control_characters_of_the_client_become_spaces() {
    let service = TestService::start(POLICY);
    let mut client = RespClient::connect(&service);
    client.send(b"*2\r\n$7\r\nA\r\n+OK\r\r\n$3\r\nb\n:\r\n");
    assert_eq!(client.reply(), error("ERR unknown command 'A  +OK ', with args beginning with: 'b :' "));
    assert_eq!(
        client.call(&"x".repeat(5000)),
        error(&format!("ERR unknown command '{}', with args beginning with: ", "x".repeat(128)))
    );
}

#[test]
fn http_request_of_a_browser_closes_the_connection() {
    let service = TestService::start(POLICY);
    for request in [
        "POST / HTTP/1.1\r\n\r\nTIDEGATE.RESET default user:bob\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\nPING\r\n",
    ] {
        let mut client = RespClient::connect(&service);
        client.send(request);
        if request.starts_with("GET") {
            assert!(matches!(client.reply(), Reply::Error(_)));
        }
        assert!(client.is_closed(), "{request}");
    }
}

#[test]
fn hello_selects_the_version_of_the_protocol() {
    let service = TestService::start(POLICY);
    let mut client = RespClient::connect(&service);
    let Reply::Array(hello) = client.call("HELLO") else { panic!() };
    assert_eq!((&hello[0], &hello[5]), (&bulk("server"), &Reply::Integer(2)));
    let Reply::Map(hello) = client.call("HELLO 3 SETNAME app") else { panic!() };
    assert!(hello.contains(&(bulk("proto"), Reply::Integer(3))));
    assert_eq!(client.call("CLIENT GETNAME"), bulk("app"));
    assert_eq!(client.call("CONFIG GET save"), Reply::Map(Vec::new()));
    assert_eq!(client.call("HELLO 4"), error("NOPROTO unsupported protocol version"));
    assert_eq!(client.call("HELLO x"), error("ERR Protocol version is not an integer or out of range"));
    assert_eq!(client.call("HELLO 3 NOPE"), error("ERR Syntax error in HELLO"));
    // A failed HELLO changes nothing.
    assert_eq!(client.call("COMMAND INFO nope"), Reply::Array(vec![Reply::Null]));
    assert!(matches!(client.call("HELLO 2"), Reply::Array(_)));
    // CL.THROTTLE has the same reply in both versions.
    assert!(matches!(client.call("HELLO 3"), Reply::Map(_)));
    assert_eq!(client.call("CL.THROTTLE k 0 1 1"), integers(&[0, 1, 0, -1, 1]));
}

#[test]
fn rule_commands_check_peek_refund_and_reset_one_counter() {
    let service = TestService::start(POLICY);
    let mut client = RespClient::connect(&service);
    let at = 1_700_000_000_000_000;
    let admitted = |remaining, reset_ms| integers(&[1, 3, remaining, -1, reset_ms, 0, at]);
    let rejected = |remaining, retry_ms| integers(&[0, 3, remaining, retry_ms, 60_000, 0, at]);
    assert_eq!(client.call("TIDEGATE.PEEK default user:bob"), admitted(3, 0));
    assert_eq!(client.call("TIDEGATE.CHECK default user:bob"), admitted(2, 20_000));
    assert_eq!(client.call("TIDEGATE.CHECK default user:bob 2"), admitted(0, 60_000));
    assert_eq!(client.call("TIDEGATE.CHECK default user:bob"), rejected(0, 20_000));
    assert_eq!(client.call("TIDEGATE.PEEK default user:bob 3"), rejected(0, 60_000));
    // It can never fit.
    assert_eq!(client.call("TIDEGATE.CHECK default user:bob 4"), rejected(0, -1));
    assert_eq!(client.call(&format!("TIDEGATE.REFUND default user:bob 2 {at}")), status("OK"));
    assert_eq!(client.call("TIDEGATE.PEEK default user:bob"), admitted(2, 20_000));
    assert_eq!(client.call("TIDEGATE.RESET default user:bob"), status("OK"));
    assert_eq!(client.call("TIDEGATE.PEEK default user:bob"), admitted(3, 0));
    assert_eq!(client.call("TIDEGATE.CHECK default user:eve 3"), admitted(0, 60_000));
    assert_eq!(client.call("TIDEGATE.CHECK default user:bob"), admitted(2, 20_000));
}

/// Current clients select RESP3 by themselves, and programs unpack the reply.
#[test]
fn decisions_have_the_same_array_of_integers_in_both_protocols() {
    let service = TestService::start(POLICY);
    let (mut resp2, mut resp3) = (RespClient::connect(&service), RespClient::connect(&service));
    assert!(matches!(resp3.call("HELLO 3"), Reply::Map(_)));
    let at = 1_700_000_000_000_000;
    resp2.call("TIDEGATE.CHECK default user:bob 3");
    for (command, expected) in [
        ("TIDEGATE.CHECK default user:bob", integers(&[0, 3, 0, 20_000, 60_000, 0, at])),
        ("TIDEGATE.PEEK default user:bob 2", integers(&[0, 3, 0, 40_000, 60_000, 0, at])),
        ("TIDEGATE.PEEK default user:eve", integers(&[1, 3, 3, -1, 0, 0, at])),
        ("TIDEGATE.REFUND default user:eve 1", status("UNCHANGED")),
        ("TIDEGATE.RESET default user:eve", status("OK")),
        ("CL.THROTTLE key 0 1 60 0", integers(&[0, 1, 1, -1, 0])),
        ("CL.THROTTLE key 0 1 60 2", integers(&[1, 1, 1, -1, 0])),
        ("TIDEGATE.CHECK none user:bob", error("NORULE the policy has no such rate limit; it has `default`")),
    ] {
        assert_eq!((resp2.call(command), resp3.call(command)), (expected.clone(), expected), "{command}");
    }
    for client in [&mut resp2, &mut resp3] {
        client.call("MULTI");
        client.call("TIDEGATE.CHECK default user:bob");
        let rejected = integers(&[0, 3, 0, 20_000, 60_000, 0, at]);
        assert_eq!(client.call("EXEC"), Reply::Array(vec![rejected]));
    }
}

#[test]
fn rule_commands_leaky_bucket_reports_the_wait() {
    let policy = "rate_limits: { default: { requests: 1, window: 1s, algorithm: leaky_bucket, burst: 3 } }";
    let service = TestService::start(policy);
    let mut client = RespClient::connect(&service);
    client.call("TIDEGATE.CHECK default user:bob");
    for command in ["PEEK", "CHECK"] {
        let reply = client.call(&format!("TIDEGATE.{command} default user:bob"));
        let Reply::Array(fields) = reply else { panic!() };
        assert_eq!(fields[0], Reply::Integer(1));
        assert_eq!(fields[5..], [Reply::Integer(1_000), Reply::Integer(1_700_000_001_000_000)], "{command}");
    }
}

#[test]
fn rule_commands_invalid_arguments_state_what_is_wrong() {
    let service = TestService::start(POLICY);
    let mut client = RespClient::connect(&service);
    let cases = [
        ("TIDEGATE.CHECK nope user:bob", "NORULE the policy has no such rate limit; it has `default`"),
        ("TIDEGATE.REFUND nope user:bob 1", "NORULE the policy has no such rate limit; it has `default`"),
        ("TIDEGATE.RESET nope user:bob", "NORULE the policy has no such rate limit; it has `default`"),
        ("TIDEGATE.CHECK default", "ERR wrong number of arguments for 'tidegate.check' command"),
        ("TIDEGATE.CHECK default user:bob 1 1", "ERR wrong number of arguments"),
        ("TIDEGATE.CHECK default user:bob -1", "ERR cost is not an integer, or is negative or too large"),
        (
            "TIDEGATE.REFUND default user:bob 1 x",
            "ERR charged_at is not an integer, or is negative or too large",
        ),
    ];
    for (command, expected) in cases {
        assert_eq!(client.call(command), error(expected), "{command}");
    }
    let Reply::Error(text) = client.call("TIDEGATE.CHECK default bob") else { panic!() };
    assert!(text.starts_with("ERR invalid client: missing client kind"), "{text}");
    client.send(b"*3\r\n$14\r\nTIDEGATE.CHECK\r\n$1\r\n\xff\r\n$8\r\nuser:bob\r\n");
    assert_eq!(client.reply(), error("ERR rule is not valid UTF-8"));
}

#[test]
fn rule_commands_need_the_identities_that_the_rule_counts() {
    let policy = "
clients: { user: { header: x-user } }
rate_limits:
  rules:
    - { name: pair, match: { path: /login }, requests: 3, window: 1m, algorithm: token_bucket, per: [ip, user] }
    - { name: all, match: { path: /all }, requests: 3, window: 1m, algorithm: token_bucket, per: everybody }
";
    let service = TestService::start(policy);
    let mut client = RespClient::connect(&service);
    let remaining = |reply| match reply {
        Reply::Array(fields) => fields[2].clone(),
        other => panic!("{other:?}"),
    };
    // In any order, one counter.
    for (command, left) in [
        ("CHECK pair ip:192.0.2.1 user:bob", 2),
        ("CHECK pair user:bob ip:192.0.2.1 2", 0),
        ("CHECK pair user:eve ip:192.0.2.1", 2),
        ("PEEK pair user:bob ip:192.0.2.1", 0),
        ("CHECK all user:bob", 2),
        ("CHECK all anything 2", 0),
    ] {
        assert_eq!(remaining(client.call(&format!("TIDEGATE.{command}"))), Reply::Integer(left), "{command}");
    }
    assert_eq!(client.call("TIDEGATE.REFUND pair ip:192.0.2.1 user:bob 1"), status("OK"));
    assert_eq!(client.call("TIDEGATE.RESET pair ip:192.0.2.1 user:eve"), status("OK"));
    let scope = "ERR invalid client: the rule counts per ip, user; name exactly these identities in `client`";
    for command in ["CHECK pair ip:192.0.2.1", "CHECK pair ip:192.0.2.1 ip:192.0.2.1", "RESET pair user:bob"]
    {
        assert_eq!(client.call(&format!("TIDEGATE.{command}")), error(scope), "{command}");
    }
    let arity = error("ERR wrong number of arguments");
    assert_eq!(client.call("TIDEGATE.REFUND pair ip:192.0.2.1 user:bob"), arity);
    assert_eq!(client.call("TIDEGATE.CHECK pair ip:192.0.2.1 user:bob 1 1"), arity);
    let long = client.call(&format!("TIDEGATE.CHECK pair ip:192.0.2.1 user:{}", "x".repeat(2_000)));
    assert_eq!(long, error("ERR invalid client: the name is too long, at most 1024 bytes are allowed"));
}

#[test]
fn metrics_count_decisions_by_protocol() {
    let service = TestService::start(POLICY);
    let mut client = RespClient::connect(&service);
    for _ in 0..5 {
        client.call("CL.THROTTLE k 1 1 60");
        client.call("TIDEGATE.CHECK default user:bob");
    }
    client.call("TIDEGATE.PEEK default user:bob");
    service.clock.advance(TimeSpan::from_secs(1));
    let metrics = service.metrics();
    let line = |name: &str| metrics.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    let requests = |decision| {
        line(&format!("rate_limit_requests_total{{decision=\"{decision}\",protocol=\"resp\"}}"))
            .and_then(|line| line.split_whitespace().last().map(str::to_owned))
    };
    assert_eq!(requests("admitted").as_deref(), Some("5"), "{metrics}");
    assert_eq!(requests("rejected").as_deref(), Some("5"), "{metrics}");
    let exceeded = |rule: &str| -> u64 {
        let lines = metrics.lines().filter(|line| line.starts_with("rate_limit_exceeded_total{"));
        let lines = lines.filter(|line| line.contains(&format!("rule=\"{rule}\"")));
        lines.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum()
    };
    assert_eq!(exceeded("default"), 2, "{metrics}");
    assert_eq!(exceeded("CL.THROTTLE"), 3, "{metrics}");
}
