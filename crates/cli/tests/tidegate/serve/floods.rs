//! HTTP/2 floods: survived, at bounded memory, while everybody else is served.

use std::io::{BufReader, Write};
use std::net::Shutdown;

use tidegate_testkit::client::{
    CONTINUATION, Connection, DATA, END_HEADERS, END_STREAM, FrameClient, GOAWAY, HEADERS, PING, PRIORITY,
    SETTINGS, UNKNOWN, WINDOW_UPDATE, frame, get_head, literal, post_head, read_head,
};
use tidegate_testkit::server::{echo, thread_per_connection};

use crate::program::serve;

/// How much more memory may be in use during a flood than before, in KiB.
const GROWTH: u64 = 32 << 10;

/// Lets `flood` loose on a gateway before `upstream`; meanwhile somebody else asks and must be answered. Says what the
/// flood found.
fn survived<T: Send>(upstream: &str, flood: impl FnOnce(&str) -> T + Send) -> T {
    let server = serve(&["--upstream", upstream, "--limit", "100000000/s"]);
    // What is set up for the first requests is not what a flood costs.
    let mut good = Connection::open(&server.address).unwrap();
    for _ in 0..50 {
        assert_eq!(good.get("").unwrap().status, 200);
    }
    let mut first = FrameClient::open(&server.address);
    first.send(HEADERS, END_STREAM | END_HEADERS, 1, &get_head()).unwrap();
    assert_eq!(first.response_head(1).unwrap()[0], 0x88);
    let before = server.resident_kib();
    let mut peak = 0;
    let found = std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(&server.address));
        loop {
            let is_last = flooding.is_finished();
            assert_eq!(good.get("").unwrap().status, 200, "others are served");
            peak = peak.max(server.resident_kib());
            if is_last {
                break flooding.join().unwrap();
            }
        }
    });
    assert!(peak.saturating_sub(before) <= GROWTH, "{} KiB more", peak - before);
    // Whoever is still connected is served, and so is whoever comes.
    first.send(HEADERS, END_STREAM | END_HEADERS, 3, &get_head()).unwrap();
    assert_eq!(first.response_head(3).unwrap()[0], 0x88);
    assert_eq!(Connection::open(&server.address).unwrap().get("").unwrap().status, 200);
    found
}

/// Sends `bytes` so many times, in portions; how many times until the gateway had enough.
fn pour(http2: &mut FrameClient, bytes: &[u8], times: usize) -> usize {
    let portion = bytes.repeat(100);
    for sent in 0..times / 100 {
        if http2.stream.write_all(&portion).is_err() {
            return sent * 100;
        }
    }
    times
}

/// Discards what the gateway sends meanwhile, so that it never waits for room, and closes the connection afterwards.
fn while_reading(mut http2: FrameClient, flood: impl FnOnce(&mut FrameClient)) {
    let mut stream = http2.stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
    flood(&mut http2);
    // Ends the reader's read at once. The gateway may have closed the connection already.
    let _ = http2.stream.shutdown(Shutdown::Both);
    let _ = reading.join().unwrap();
}

fn upstream() -> String {
    format!("http://{}", echo())
}

/// An upstream that answers GET with a body of the length that `length` says, and lets everybody else wait for ever.
fn answering(length: impl Fn(&str) -> usize + Clone + Send + 'static) -> String {
    let address = thread_per_connection(move |mut stream| {
        let mut read = BufReader::new(stream.try_clone()?);
        loop {
            let head = read_head(&mut read)?;
            if !head.starts_with("GET ") {
                // Whatever comes stays where it is.
                std::thread::park();
            }
            let length = length(&head);
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")?;
            stream.write_all(&vec![b'a'; length])?;
        }
    });
    format!("http://{address}")
}

fn waits_for_ever() -> String {
    answering(|_| 2)
}

#[test]
fn a_head_that_never_ends_is_ended() {
    let block = literal("x-filler", &"a".repeat(1_000), false).repeat(8);
    let sent = survived(&upstream(), |address| {
        let mut http2 = FrameClient::open(address);
        http2.send(HEADERS, END_STREAM, 1, &get_head()).unwrap();
        pour(&mut http2, &frame(CONTINUATION, 0, 1, &block), 100_000)
    });
    assert!(sent < 100_000, "it is cut off");
}

#[test]
fn a_head_in_endless_empty_pieces_is_ended() {
    let sent = survived(&upstream(), |address| {
        let mut http2 = FrameClient::open(address);
        http2.send(HEADERS, END_STREAM, 1, &get_head()).unwrap();
        pour(&mut http2, &frame(CONTINUATION, 0, 1, &[]), 10_000_000)
    });
    assert!(sent < 10_000_000, "it is cut off");
}

#[test]
fn pings_are_answered_or_left_but_never_piled_up() {
    survived(&upstream(), |address| {
        while_reading(FrameClient::open(address), |http2| {
            pour(http2, &frame(PING, 0, 0, b"flooding"), 300_000);
        });
        // Who takes no answers is soon not read from any more.
        let mut deaf = FrameClient::open(address);
        deaf.stream.set_write_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        pour(&mut deaf, &frame(PING, 0, 0, b"flooding"), 10_000_000)
    });
}

#[test]
fn settings_are_acknowledged_or_left_but_never_piled_up() {
    survived(&upstream(), |address| {
        // A table of headers as large as can be, and back; a window of nothing, and back.
        let large = [&[0, 1][..], &u32::MAX.to_be_bytes(), &[0, 4], &0_u32.to_be_bytes()].concat();
        let small = [&[0, 1][..], &0_u32.to_be_bytes(), &[0, 4], &65_535_u32.to_be_bytes()].concat();
        let both = [frame(SETTINGS, 0, 0, &large), frame(SETTINGS, 0, 0, &small)].concat();
        while_reading(FrameClient::open(address), |http2| {
            pour(http2, &both, 100_000);
        });
        let mut deaf = FrameClient::open(address);
        deaf.stream.set_write_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        pour(&mut deaf, &both, 5_000_000)
    });
}

#[test]
fn what_means_nothing_costs_nothing() {
    survived(&upstream(), |address| {
        while_reading(FrameClient::open(address), |http2| {
            pour(http2, &frame(UNKNOWN, 0xff, 1, &[0; 64]), 200_000);
            pour(http2, &frame(PRIORITY, 0, 9, &[0, 0, 0, 1, 7]), 200_000);
        });
    });
}

#[test]
fn a_body_of_nothing_is_no_body() {
    survived(&waits_for_ever(), |address| {
        let mut http2 = FrameClient::open(address);
        http2.send(HEADERS, END_HEADERS, 1, &post_head()).unwrap();
        pour(&mut http2, &frame(DATA, 0, 1, &[]), 1_000_000)
    });
}

#[test]
fn a_body_in_the_smallest_pieces_fills_no_memory() {
    survived(&waits_for_ever(), |address| {
        // As much as ever fits into the windows of a connection, a byte at a time, over several connections.
        for _ in 0..4 {
            let mut http2 = FrameClient::open(address);
            for stream in [1, 3, 5, 7] {
                http2.send(HEADERS, END_HEADERS, stream, &post_head()).unwrap();
            }
            for stream in [1, 3, 5, 7] {
                pour(&mut http2, &frame(DATA, 0, stream, b"a"), 60_000);
            }
        }
    });
}

#[test]
fn a_small_head_that_means_a_large_one_is_refused() {
    let refused = survived(&upstream(), |address| {
        let (mut refused, value) = (0, "a".repeat(3_000));
        for _ in 0..50 {
            let mut http2 = FrameClient::open(address);
            // Once remembered, one byte stands for it: here for 30 MB in a few frames.
            let remembered = [get_head(), literal("x-bomb", &value, true)].concat();
            http2.send(HEADERS, END_STREAM | END_HEADERS, 1, &remembered).unwrap();
            assert_eq!(http2.response_head(1).unwrap()[0], 0x88, "by itself it is fine");
            let bomb = [get_head(), vec![0xbe; 10_000]].concat();
            let sent = http2.send(HEADERS, END_STREAM | END_HEADERS, 3, &bomb);
            // 431, or the end of the stream or of the connection.
            let is_served = sent.and_then(|()| http2.response_head(3)).is_ok_and(|head| head[0] == 0x88);
            refused += usize::from(!is_served);
        }
        refused
    });
    assert_eq!(refused, 50);
}

#[test]
fn windows_that_open_by_a_byte_or_beyond_all_bounds_harm_nobody() {
    let ended = survived(&upstream(), |address| {
        while_reading(FrameClient::open(address), |http2| {
            http2.send(HEADERS, END_HEADERS, 1, &post_head()).unwrap();
            for stream in [0, 1] {
                pour(http2, &frame(WINDOW_UPDATE, 0, stream, &1_u32.to_be_bytes()), 200_000);
            }
        });
        // Twice the largest window is an error of the whole connection, and nothing is one too.
        let increments = [[i32::MAX.to_be_bytes(); 2].concat(), 0_i32.to_be_bytes().to_vec()];
        increments.map(|increments| {
            let mut http2 = FrameClient::open(address);
            for increment in increments.chunks(4) {
                http2.send(WINDOW_UPDATE, 0, 0, increment).unwrap();
            }
            loop {
                match http2.read() {
                    Ok((GOAWAY, ..)) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                }
            }
        })
    });
    assert_eq!(ended, [true, true], "they are told so");
}

#[test]
fn answers_that_nobody_reads_wait_upstream() {
    survived(&answering(|head| if head.starts_with("GET /hello") { 2 } else { 4 << 20 }), |address| {
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut http2 = FrameClient::open(address);
            // No room for any answer: more than a gigabyte wants to be sent.
            let none = [&[0, 4][..], &0_u32.to_be_bytes()].concat();
            http2.send(SETTINGS, 0, 0, &none).unwrap();
            for stream in 0..100 {
                http2.send(HEADERS, END_STREAM | END_HEADERS, 2 * stream + 1, &get_head()).unwrap();
            }
            clients.push(http2);
        }
        for http2 in &mut clients {
            let mut heads = 0;
            while heads < 100 {
                heads += usize::from(http2.read().unwrap().0 == HEADERS);
            }
        }
    });
}
