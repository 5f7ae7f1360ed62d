//! Large bodies are streamed with bounded memory.

use std::io::{Read, Write};

use tidegate_testkit::client::{Connection, content_length, read_head};
use tidegate_testkit::process::Tidegate;
use tidegate_testkit::server::echo;

use crate::program::serve;

const PIECE: usize = 64 << 10;
/// How much more memory may be in use after a body than before, in KiB.
const GROWTH: u64 = 32 << 10;

/// Sends `size` bytes through the gateway and back. Returns the growth of its memory in KiB.
fn stream(size: u64) -> u64 {
    let upstream = format!("http://{}", echo());
    let server = serve(&["--upstream", &upstream]);
    // The first requests allocate memory that is not a cost of the body.
    exchange(&server, 1 << 20);
    let before = server.resident_kib();
    let peak = exchange(&server, size);
    peak.saturating_sub(before)
}

/// Sends and receives a body of `size` bytes. Returns the peak memory in KiB.
fn exchange(server: &Tidegate, size: u64) -> u64 {
    let mut read = Connection::open(&server.address).unwrap().into_stream();
    let mut write = read.get_ref().try_clone().unwrap();
    write!(write, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {size}\r\n\r\n").unwrap();
    let sending = std::thread::spawn(move || {
        let piece: Vec<_> = (0..PIECE).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut left = usize::try_from(size).unwrap();
        while left > 0 {
            write.write_all(&piece[..left.min(PIECE)]).unwrap();
            left -= left.min(PIECE);
        }
    });
    assert_eq!(content_length(&read_head(&mut read).unwrap()), Some(size));
    let mut piece = vec![0; PIECE];
    let (mut left, mut peak) = (usize::try_from(size).unwrap(), 0);
    while left > 0 {
        let part = left.min(PIECE);
        read.read_exact(&mut piece[..part]).unwrap();
        assert!((0..part).step_by(4_099).all(|n| usize::from(piece[n]) == n % 251), "bytes stay in order");
        left -= part;
        if left.is_multiple_of(8 << 20) {
            peak = peak.max(server.resident_kib());
        }
    }
    sending.join().unwrap();
    peak.max(server.resident_kib())
}

#[test]
fn body_of_1_gib_is_streamed_both_ways_with_bounded_memory() {
    let growth = stream(1 << 30);
    println!("1 GiB both ways: {growth} KiB more in memory, at most {GROWTH}");
    assert!(growth <= GROWTH, "{growth} KiB more");
}
