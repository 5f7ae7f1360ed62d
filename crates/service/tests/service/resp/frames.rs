//! Frames: any bytes, however they are split.

#[path = "../../../../../fuzz/laws/resp.rs"]
mod law;

use proptest::prelude::*;

use super::{RespClient, encode, error, integers, status};
use crate::fixture::{TestService, corpus};

#[test]
fn malformed_frame_is_answered_after_earlier_commands_and_closes_the_connection() {
    let service = TestService::start("{}");
    let cases = [
        ("*x\r\n", "invalid multibulk length"),
        ("*1000000\r\n", "invalid multibulk length"),
        ("*1\r\n$1000000\r\n", "too big command, at most 65536 bytes are allowed"),
        ("*1\r\n+PING\r\n", "expected '$', got '+'"),
        ("*1\r\n$4\r\nPING!!", "expected CRLF after a bulk string"),
        ("ECHO \"a\r\n", "unbalanced quotes in request"),
    ];
    for (bytes, expected) in cases {
        let mut client = RespClient::connect(&service);
        client.send([&encode("CL.THROTTLE k 99 1 1 0"), bytes.as_bytes()].concat());
        assert_eq!(client.reply(), integers(&[0, 100, 100, -1, 0]), "{bytes:?}");
        assert_eq!(client.reply(), error(&format!("ERR Protocol error: {expected}")), "{bytes:?}");
        assert!(client.is_closed(), "{bytes:?}");
    }
}

#[test]
fn commands_byte_by_byte_are_answered() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    client.stream().set_nodelay(true).unwrap();
    let bytes =
        [&encode("CL.THROTTLE key 1 1 60")[..], b"PING\r\n", b"CL.THROTTLE \"key\" 1 1 60\r\n"].concat();
    for byte in bytes {
        client.send([byte]);
    }
    assert_eq!(client.reply(), integers(&[0, 2, 1, -1, 60]));
    assert_eq!(client.reply(), status("PONG"));
    assert_eq!(client.reply(), integers(&[0, 2, 0, -1, 120]));
}

#[test]
fn longest_command_in_parts_is_answered() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    let key = "k".repeat(65_000);
    for _ in 0..3 {
        assert!(matches!(client.call(&format!("CL.THROTTLE {key} 1 1 60 0")), super::Reply::Array(_)));
    }
}

/// Bytes that look like frames more often than random ones.
fn frame_bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just(b"*1\r\n$4\r\nPING\r\n".to_vec()),
        Just(b"*2\r\n$4\r\nECHO\r\n$3\r\nabc\r\n".to_vec()),
        Just(b"PING \"a b\" 'c'\r\n".to_vec()),
        Just(b"*0\r\n".to_vec()),
        "[*$0-9\r\n\"'a x-]{0,12}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn frames_any_split_gives_the_same_commands(
        splits in prop::collection::vec(any::<u8>(), 0..40),
        bytes in frame_bytes(),
    ) {
        let count = u8::try_from(splits.len()).unwrap();
        law::assert_law(&[&[count], &splits[..], &bytes].concat());
    }
}

#[test]
fn corpus_frames_in_any_split_give_the_same_commands() {
    for input in corpus("resp") {
        law::assert_law(&input);
    }
}
