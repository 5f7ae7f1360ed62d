//! Requests, computed before the load: one per key, in random order, all of the same length, so that any run of them is one
//! slice.

use std::fmt::Write;
use std::ops::Range;

use anyhow::ensure;

/// The keys of every work but the one about memory.
pub(crate) const KEYS: usize = 100_000;

/// Requests one after the other.
#[derive(Debug)]
pub(crate) struct RequestSet {
    bytes: Vec<u8>,
    length: usize,
    count: usize,
}

impl RequestSet {
    /// One request per key. A key is a number with seven digits.
    pub(crate) fn new(keys: usize, request: impl Fn(&str) -> Vec<u8>) -> anyhow::Result<Self> {
        let mut order: Vec<usize> = (0..keys).collect();
        fastrand::Rng::with_seed(7).shuffle(&mut order);
        let length = request(&key(0)).len();
        let mut bytes = Vec::with_capacity(keys * length);
        for number in order {
            bytes.extend_from_slice(&request(&key(number)));
        }
        ensure!(bytes.len() == keys * length, "requests differ in length");
        Ok(Self { bytes, length, count: keys })
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of `count` requests, beginning with request `first`.
    pub(crate) fn range(&self, first: usize, count: usize) -> Range<usize> {
        first * self.length..(first + count) * self.length
    }
}

fn key(number: usize) -> String {
    format!("{number:07}")
}

/// A command of the Redis protocol.
pub(crate) fn command(arguments: &[&str]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        let _ = write!(text, "${}\r\n{argument}\r\n", argument.len());
    }
    text.into_bytes()
}

/// A POST of JSON.
pub(crate) fn post(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Envoy's `RateLimitRequest` as a gRPC message: a domain and one descriptor with one entry.
pub(crate) fn rls_message(domain: &str, entry: (&str, &str)) -> Vec<u8> {
    let entry = [field(1, entry.0.as_bytes()), field(2, entry.1.as_bytes())].concat();
    let descriptor = field(1, &entry);
    grpc_message(&[field(1, domain.as_bytes()), field(2, &descriptor)].concat())
}

/// throttlecrab's `ThrottleRequest` as a gRPC message; all numbers are under 128.
pub(crate) fn throttle_message(key: &str, [burst, count, period, quantity]: [u8; 4]) -> Vec<u8> {
    let numbers = [0x10, burst, 0x18, count, 0x20, period, 0x28, quantity];
    grpc_message(&[field(1, key.as_bytes()), numbers.to_vec()].concat())
}

/// A field of bytes, shorter than 128.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 128);
    let header = [number << 3 | 2, length.expect("fields of the benchmark are short")];
    [&header, bytes].concat()
}

/// Not compressed, with its length.
fn grpc_message(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("messages of the benchmark are short");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_an_array_of_bulk_strings() {
        assert_eq!(command(&["INCR", "a"]), b"*2\r\n$4\r\nINCR\r\n$1\r\na\r\n");
    }

    #[test]
    fn rls_message_nests_entry_in_descriptor() {
        let message = rls_message("d", ("k", "v"));
        assert_eq!(message[..5], [0, 0, 0, 0, 13]);
        assert_eq!(message[5..], *b"\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01v");
    }

    #[test]
    fn request_set_contains_every_key_once() {
        let set = RequestSet::new(100, |key| key.as_bytes().to_vec()).unwrap();
        let mut all: Vec<_> = set.bytes().chunks_exact(7).collect();
        assert_ne!(all[..3], [b"0000000", b"0000001", b"0000002"]);
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), set.len()), (100, 100));
        assert_eq!(set.range(3, 2), 21..35);
    }
}
