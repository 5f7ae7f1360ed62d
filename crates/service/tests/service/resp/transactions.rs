//! `MULTI`, `EXEC` and `DISCARD`.

use super::{Reply, RespClient, bulk, encode, error, integers, status};
use crate::fixture::TestService;

const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";

#[test]
fn transaction_commands_are_executed_in_order_by_exec() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    let commands = [
        "CL.THROTTLE k 1 1 60",
        "MULTI",
        "CL.THROTTLE k 1 1 60",
        "ECHO a",
        "CL.THROTTLE k 1 1 60",
        "CL.THROTTLE k x 1 60",
        "EXEC",
        "PING",
    ];
    client.send(commands.map(encode).concat());
    assert_eq!(client.reply(), integers(&[0, 2, 1, -1, 60]));
    assert_eq!(client.reply(), status("OK"));
    for _ in 0..4 {
        assert_eq!(client.reply(), status("QUEUED"));
    }
    assert_eq!(
        client.reply(),
        Reply::Array(vec![
            integers(&[0, 2, 0, -1, 120]),
            bulk("a"),
            integers(&[1, 2, 0, 60, 120]),
            error("ERR max_burst is not an integer or out of range"),
        ])
    );
    assert_eq!(client.reply(), status("PONG"));
}

#[test]
fn transaction_with_a_refused_command_is_not_executed() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    for refused in ["NOPE", "ECHO", "COMMAND", "AUTH x"] {
        assert_eq!(client.call("MULTI"), status("OK"));
        assert_eq!(client.call("CL.THROTTLE k 0 1 60"), status("QUEUED"));
        assert!(matches!(client.call(refused), Reply::Error(_)), "{refused}");
        assert_eq!(client.call("CL.THROTTLE k 0 1 60"), status("QUEUED"));
        assert_eq!(client.call("EXEC"), error(ABORTED));
    }
    assert_eq!(client.call("CL.THROTTLE k 0 1 60"), integers(&[0, 1, 0, -1, 60]));
}

#[test]
fn transaction_discard_reset_and_wrong_order_reply_as_redis() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    for (command, expected) in [
        ("EXEC", error("ERR EXEC without MULTI")),
        ("DISCARD", error("ERR DISCARD without MULTI")),
        ("MULTI", status("OK")),
        ("MULTI", error("ERR MULTI calls can not be nested")),
        ("CL.THROTTLE k 0 1 60", status("QUEUED")),
        ("DISCARD", status("OK")),
        ("EXEC", error("ERR EXEC without MULTI")),
        ("MULTI", status("OK")),
        ("RESET", status("RESET")),
        ("CL.THROTTLE k 0 1 60", integers(&[0, 1, 0, -1, 60])),
        ("MULTI", status("OK")),
        ("EXEC", Reply::Array(Vec::new())),
    ] {
        assert_eq!(client.call(command), expected, "{command}");
    }
}

#[test]
fn transaction_that_is_too_long_is_not_executed() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    assert_eq!(client.call("MULTI"), status("OK"));
    client.send(encode("CL.THROTTLE k 9999 1 60").repeat(5_000));
    let replies: Vec<_> = (0..5_000).map(|_| client.reply()).collect();
    assert_eq!(replies.iter().filter(|reply| matches!(reply, Reply::Error(_))).count(), 1);
    assert_eq!(client.call("EXEC"), error(ABORTED));
    assert_eq!(client.call("CL.THROTTLE k 9999 1 60 0"), integers(&[0, 10_000, 10_000, -1, 0]));
}

#[test]
fn transaction_with_an_inline_command_that_is_too_long_as_an_array_is_aborted() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    for (length, fits) in [(65_512, true), (65_513, false), (65_520, false)] {
        let text = "x".repeat(length);
        client.send(format!("MULTI\r\nPING\r\nECHO {text}\r\nPING\r\nEXEC\r\n").into_bytes());
        let replies: Vec<_> = (0..5).map(|_| client.reply()).collect();
        let expected = if fits {
            Reply::Array(vec![status("PONG"), bulk(&text), status("PONG")])
        } else {
            error(ABORTED)
        };
        assert_eq!(matches!(replies[2], Reply::Error(_)), !fits, "{length}");
        assert!(replies[4] == expected, "{length}");
        assert_eq!(client.call("PING"), status("PONG"));
    }
}
