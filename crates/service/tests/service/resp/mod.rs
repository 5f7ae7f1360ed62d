//! The Redis protocol.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod authentication;
mod commands;
mod frames;
mod log;
mod pipelines;
mod throttle;
mod transactions;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidegate_telemetry::Protocol;

use crate::fixture::TestService;

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Boolean(bool),
    Null,
}

/// A connection to the Redis protocol of a service.
pub(crate) struct RespClient {
    stream: TcpStream,
    received: Vec<u8>,
}

impl RespClient {
    pub(crate) fn connect(service: &TestService) -> Self {
        let stream = TcpStream::connect(service.address(Protocol::Resp)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        Self { stream, received: Vec::new() }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a command, as words separated by spaces, and returns its reply.
    pub(crate) fn call(&mut self, words: &str) -> Reply {
        self.send(encode(words));
        self.reply()
    }

    /// The next reply.
    pub(crate) fn reply(&mut self) -> Reply {
        loop {
            if let Some((reply, len)) = decode(&self.received) {
                self.received.drain(..len);
                return reply;
            }
            assert!(self.fill() > 0, "closed after {}", self.received.escape_ascii());
        }
    }

    /// Whether the service closes the connection without another reply.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.received.is_empty() && self.fill() == 0
    }

    fn fill(&mut self) -> usize {
        let mut bytes = [0; 8192];
        let len = match self.stream.read(&mut bytes) {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("{error}"),
        };
        self.received.extend_from_slice(&bytes[..len]);
        len
    }
}

/// A command as an array of bulk strings.
pub(crate) fn encode(words: &str) -> Vec<u8> {
    let words: Vec<_> = words.split(' ').collect();
    let argument = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    let arguments: String = words.iter().map(argument).collect();
    format!("*{}\r\n{arguments}", words.len()).into_bytes()
}

/// The reply at the beginning of `bytes` and its length, if it is complete.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Reply, usize)> {
    let line_end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let text = String::from_utf8_lossy(&bytes[1..line_end]).into_owned();
    let mut position = line_end + 2;
    let number = || text.parse::<i64>().unwrap();
    let reply = match bytes[0] {
        b'+' => Reply::Status(text),
        b'-' => Reply::Error(text),
        b':' => Reply::Integer(number()),
        b'#' => Reply::Boolean(text == "t"),
        b'_' => Reply::Null,
        b'$' if number() < 0 => Reply::Null,
        b'$' => {
            let len = usize::try_from(number()).unwrap();
            let bulk = bytes.get(position..position + len + 2)?;
            position += len + 2;
            Reply::Bulk(String::from_utf8_lossy(&bulk[..len]).into_owned())
        }
        b'*' => Reply::Array((0..number()).map(|_| next(bytes, &mut position)).collect::<Option<_>>()?),
        b'%' => {
            let pair = |_| Some((next(bytes, &mut position)?, next(bytes, &mut position)?));
            Reply::Map((0..number()).map(pair).collect::<Option<_>>()?)
        }
        other => panic!("unknown kind {other}"),
    };
    Some((reply, position))
}

fn next(bytes: &[u8], position: &mut usize) -> Option<Reply> {
    let (reply, len) = decode(&bytes[*position..])?;
    *position += len;
    Some(reply)
}

pub(crate) fn status(text: &str) -> Reply {
    Reply::Status(text.to_owned())
}

pub(crate) fn error(text: &str) -> Reply {
    Reply::Error(text.to_owned())
}

pub(crate) fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.to_owned())
}

pub(crate) fn integers(numbers: &[i64]) -> Reply {
    Reply::Array(numbers.iter().copied().map(Reply::Integer).collect())
}
