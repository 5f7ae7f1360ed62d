//! Pipelines, and clients that do not read.

use std::io::{ErrorKind, Write};

use super::{Reply, RespClient, encode, integers, status};
use crate::fixture::TestService;

#[test]
fn pipeline_of_10_000_commands_is_answered_in_order() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    let commands: Vec<u8> = (0..10_000)
        .flat_map(|index| match index % 10 {
            9 => encode(&format!("ECHO {index}")),
            _ => encode("CL.THROTTLE key 4999 1 60"),
        })
        .collect();
    client.send(commands);
    let mut admitted = 0;
    for index in 0..10_000 {
        match client.reply() {
            Reply::Bulk(text) => assert_eq!(text, index.to_string()),
            Reply::Array(fields) if fields[0] == Reply::Integer(0) => {
                admitted += 1;
                assert_eq!(fields[2], Reply::Integer(5_000 - admitted));
            }
            rejected => assert_eq!(rejected, integers(&[1, 5_000, 0, 60, 300_000])),
        }
    }
    assert_eq!(admitted, 5_000);
}

#[test]
fn pipeline_error_between_commands_is_answered_in_order() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    let commands = ["CL.THROTTLE k 1 1 60", "CL.THROTTLE k x 1 60", "PING", "CL.THROTTLE k 1 1 60"];
    client.send(commands.map(encode).concat());
    assert_eq!(client.reply(), integers(&[0, 2, 1, -1, 60]));
    assert!(matches!(client.reply(), Reply::Error(_)));
    assert_eq!(client.reply(), status("PONG"));
    assert_eq!(client.reply(), integers(&[0, 2, 0, -1, 120]));
}

#[test]
fn pipeline_before_the_end_of_input_is_answered() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    client.send(encode("PING").repeat(100));
    client.stream().shutdown(std::net::Shutdown::Write).unwrap();
    for _ in 0..100 {
        assert_eq!(client.reply(), status("PONG"));
    }
    assert!(client.is_closed());
}

#[test]
fn client_that_never_reads_is_not_read_from_and_gets_every_reply_later() {
    let service = TestService::start("{}");
    let mut client = RespClient::connect(&service);
    // Replies are much longer than the commands.
    let command = b"COMMAND\r\n".repeat(1_000);
    client.stream().set_nonblocking(true).unwrap();
    // The service must stop reading: then the socket takes no more. What it takes is bounded by the buffers of the system.
    let (mut sent, mut waits) = (0, 0);
    while waits < 1_000 {
        match (&mut client.stream()).write(&command[sent % command.len()..]) {
            Ok(len) => (sent, waits) = (sent + len, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                waits += 1;
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 64 << 20, "the service reads on");
    }
    // Other connections are served meanwhile.
    let mut other = RespClient::connect(&service);
    assert_eq!(other.call("PING"), status("PONG"));
    client.stream().set_nonblocking(false).unwrap();
    for _ in 0..(sent / b"COMMAND\r\n".len()).min(20_000) {
        assert!(matches!(client.reply(), Reply::Array(commands) if commands.len() == 19));
    }
}
