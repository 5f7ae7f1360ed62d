//! HTTP/2 floods: memory stays bounded and other clients get responses.

use std::io::{BufReader, Write};
use std::net::Shutdown;

use tidegate_testkit::client::{
    CONTINUATION, Connection, DATA, END_HEADERS, END_STREAM, FrameClient, GOAWAY, HEADERS, PING, PRIORITY,
    SETTINGS, UNKNOWN, WINDOW_UPDATE, frame, get_head, literal, post_head, read_head,
};
use tidegate_testkit::server::{HttpServer, echo, full, thread_per_connection};
use tidegate_testkit::wait::eventually_blocking;

use crate::program::serve;

/// How much more memory may be in use during a flood than before, in KiB.
const GROWTH: u64 = 32 << 10;

/// Runs `flood` against a gateway in front of `upstream`, while another client must get responses. Returns the result of
/// the flood.
fn run_flood<T: Send>(upstream: &str, flood: impl FnOnce(&str) -> T + Send) -> T {
    let server = serve(&["--upstream", upstream, "--limit", "100000000/s"]);
    // The first requests allocate memory that is not a cost of the flood.
    let mut other = Connection::open(&server.address).unwrap();
    for _ in 0..50 {
        assert_eq!(other.get("").unwrap().status, 200);
    }
    let mut first = FrameClient::open(&server.address);
    first.send(HEADERS, END_STREAM | END_HEADERS, 1, &get_head()).unwrap();
    assert_eq!(first.response_head(1).unwrap()[0], 0x88);
    let before = server.resident_kib();
    let mut peak = 0;
    let result = std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(&server.address));
        loop {
            let is_last = flooding.is_finished();
            assert_eq!(other.get("").unwrap().status, 200, "the other client gets a response");
            peak = peak.max(server.resident_kib());
            if is_last {
                break flooding.join().unwrap();
            }
        }
    });
    assert!(peak.saturating_sub(before) <= GROWTH, "{} KiB more", peak - before);
    // Open and new connections get responses after the flood.
    first.send(HEADERS, END_STREAM | END_HEADERS, 3, &get_head()).unwrap();
    assert_eq!(first.response_head(3).unwrap()[0], 0x88);
    assert_eq!(Connection::open(&server.address).unwrap().get("").unwrap().status, 200);
    result
}

/// Sends `bytes` `times` times, in portions. Returns how often it was sent before the gateway closed the connection.
fn send_repeatedly(http2: &mut FrameClient, bytes: &[u8], times: usize) -> usize {
    let portion = bytes.repeat(100);
    for sent in 0..times / 100 {
        if http2.stream.write_all(&portion).is_err() {
            return sent * 100;
        }
    }
    times
}

/// Discards what the gateway sends meanwhile, so that it never waits for the client, and closes the connection afterwards.
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

/// An upstream that responds to GET with a body of the length that `length` returns, and never to other methods.
fn responding_upstream(length: impl Fn(&str) -> usize + Clone + Send + 'static) -> String {
    let address = thread_per_connection(move |mut stream| {
        let mut read = BufReader::new(stream.try_clone()?);
        loop {
            let head = read_head(&mut read)?;
            if !head.starts_with("GET ") {
                // The body stays unread.
                std::thread::park();
            }
            let length = length(&head);
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")?;
            stream.write_all(&vec![b'a'; length])?;
        }
    });
    format!("http://{address}")
}

fn never_responding_upstream() -> String {
    responding_upstream(|_| 2)
}

#[test]
fn endless_continuation_frames_close_the_connection() {
    let block = literal("x-filler", &"a".repeat(1_000), false).repeat(8);
    let sent = run_flood(&upstream(), |address| {
        let mut http2 = FrameClient::open(address);
        http2.send(HEADERS, END_STREAM, 1, &get_head()).unwrap();
        send_repeatedly(&mut http2, &frame(CONTINUATION, 0, 1, &block), 100_000)
    });
    assert!(sent < 100_000, "the connection is closed");
}

#[test]
fn endless_empty_continuation_frames_close_the_connection() {
    let sent = run_flood(&upstream(), |address| {
        let mut http2 = FrameClient::open(address);
        http2.send(HEADERS, END_STREAM, 1, &get_head()).unwrap();
        send_repeatedly(&mut http2, &frame(CONTINUATION, 0, 1, &[]), 10_000_000)
    });
    assert!(sent < 10_000_000, "the connection is closed");
}

#[test]
fn ping_flood_uses_bounded_memory() {
    run_flood(&upstream(), |address| {
        while_reading(FrameClient::open(address), |http2| {
            send_repeatedly(http2, &frame(PING, 0, 0, b"flooding"), 300_000);
        });
        // The gateway soon stops reading from a client that reads no responses.
        let mut non_reading = FrameClient::open(address);
        non_reading.stream.set_write_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        send_repeatedly(&mut non_reading, &frame(PING, 0, 0, b"flooding"), 10_000_000)
    });
}

#[test]
fn settings_flood_uses_bounded_memory() {
    run_flood(&upstream(), |address| {
        // A table of headers as large as can be, and back; a window of nothing, and back.
        let large = [&[0, 1][..], &u32::MAX.to_be_bytes(), &[0, 4], &0_u32.to_be_bytes()].concat();
        let small = [&[0, 1][..], &0_u32.to_be_bytes(), &[0, 4], &65_535_u32.to_be_bytes()].concat();
        let both = [frame(SETTINGS, 0, 0, &large), frame(SETTINGS, 0, 0, &small)].concat();
        while_reading(FrameClient::open(address), |http2| {
            send_repeatedly(http2, &both, 100_000);
        });
        let mut non_reading = FrameClient::open(address);
        non_reading.stream.set_write_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        send_repeatedly(&mut non_reading, &both, 5_000_000)
    });
}

#[test]
fn flood_of_unknown_and_priority_frames_uses_bounded_memory() {
    run_flood(&upstream(), |address| {
        while_reading(FrameClient::open(address), |http2| {
            send_repeatedly(http2, &frame(UNKNOWN, 0xff, 1, &[0; 64]), 200_000);
            send_repeatedly(http2, &frame(PRIORITY, 0, 9, &[0, 0, 0, 1, 7]), 200_000);
        });
    });
}

#[test]
fn flood_of_empty_data_frames_uses_bounded_memory() {
    run_flood(&never_responding_upstream(), |address| {
        let mut http2 = FrameClient::open(address);
        http2.send(HEADERS, END_HEADERS, 1, &post_head()).unwrap();
        send_repeatedly(&mut http2, &frame(DATA, 0, 1, &[]), 1_000_000)
    });
}

#[test]
fn flood_of_one_byte_data_frames_uses_bounded_memory() {
    run_flood(&never_responding_upstream(), |address| {
        // As much as ever fits into the windows of a connection, a byte at a time, over several connections.
        for _ in 0..4 {
            let mut http2 = FrameClient::open(address);
            for stream in [1, 3, 5, 7] {
                http2.send(HEADERS, END_HEADERS, stream, &post_head()).unwrap();
            }
            for stream in [1, 3, 5, 7] {
                send_repeatedly(&mut http2, &frame(DATA, 0, stream, b"a"), 60_000);
            }
        }
    });
}

#[test]
fn hpack_bomb_is_rejected() {
    let rejected = run_flood(&upstream(), |address| {
        let (mut rejected, value) = (0, "a".repeat(3_000));
        for _ in 0..50 {
            let mut http2 = FrameClient::open(address);
            // Once it is in the dynamic table, one byte stands for it: here for 30 MB in a few frames.
            let remembered = [get_head(), literal("x-bomb", &value, true)].concat();
            http2.send(HEADERS, END_STREAM | END_HEADERS, 1, &remembered).unwrap();
            assert_eq!(http2.response_head(1).unwrap()[0], 0x88, "the header alone is accepted");
            let bomb = [get_head(), vec![0xbe; 10_000]].concat();
            let sent = http2.send(HEADERS, END_STREAM | END_HEADERS, 3, &bomb);
            // 431, or the end of the stream or of the connection.
            let is_accepted = sent.and_then(|()| http2.response_head(3)).is_ok_and(|head| head[0] == 0x88);
            rejected += usize::from(!is_accepted);
        }
        rejected
    });
    assert_eq!(rejected, 50);
}

#[test]
fn window_update_flood_uses_bounded_memory_and_an_invalid_one_gets_goaway() {
    let ended = run_flood(&upstream(), |address| {
        while_reading(FrameClient::open(address), |http2| {
            http2.send(HEADERS, END_HEADERS, 1, &post_head()).unwrap();
            for stream in [0, 1] {
                send_repeatedly(http2, &frame(WINDOW_UPDATE, 0, stream, &1_u32.to_be_bytes()), 200_000);
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
    assert_eq!(ended, [true, true], "each connection gets GOAWAY");
}

#[test]
fn unread_responses_use_bounded_memory() {
    run_flood(
        &responding_upstream(|head| if head.starts_with("GET /hello") { 2 } else { 4 << 20 }),
        |address| {
            let mut clients = Vec::new();
            for _ in 0..3 {
                let mut http2 = FrameClient::open(address);
                // A zero window: more than a gigabyte of responses cannot be sent.
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
        },
    );
}

/// A response without the end of its body.
const UNREAD: usize = 2 << 20;

fn unread_length(head: &str) -> usize {
    if head.starts_with("GET /hello") { 2 } else { UNREAD }
}

/// The same as [`responding_upstream`] with chunks.
fn chunked_upstream() -> String {
    let address = thread_per_connection(move |mut stream| {
        let mut read = BufReader::new(stream.try_clone()?);
        loop {
            let length = unread_length(&read_head(&mut read)?);
            write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n")?;
            stream.write_all(&vec![b'a'; length])?;
            write!(stream, "\r\n0\r\n\r\n")?;
        }
    });
    format!("http://{address}")
}

/// The same over HTTP/2.
fn http2_upstream() -> String {
    static BODY: [u8; UNREAD] = [b'a'; UNREAD];
    let (sender, url) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = HttpServer::start(|request| async move {
                let length = unread_length(&format!("GET {}", request.uri().path()));
                http::Response::new(full(&BODY[..length]))
            });
            let server = server.await;
            sender.send(server.h2c()).unwrap();
            std::future::pending::<()>().await;
        });
    });
    url.recv().unwrap()
}

/// Sends as many requests as a connection may have, with windows that admit all responses, and reads none.
fn stall(address: &str) -> FrameClient {
    let mut http2 = FrameClient::open(address);
    let window = [&[0, 4][..], &i32::MAX.to_be_bytes()].concat();
    http2.send(SETTINGS, 0, 0, &window).unwrap();
    http2.send(WINDOW_UPDATE, 0, 0, &(i32::MAX - 65_535).to_be_bytes()).unwrap();
    for stream in 0..128 {
        http2.send(HEADERS, END_STREAM | END_HEADERS, 2 * stream + 1, &get_head()).unwrap();
    }
    http2
}

/// How much memory each connection uses whose client reads none of its responses, in KiB.
fn stalled_kib(upstream: &str) -> u64 {
    const CONNECTIONS: usize = 2;
    let server = serve(&["--upstream", upstream, "--limit", "100000000/s"]);
    let mut other = Connection::open(&server.address).unwrap();
    for _ in 0..50 {
        assert_eq!(other.get("").unwrap().status, 200);
    }
    let before = server.resident_kib();
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| stall(&server.address)).collect();
    let (mut seen, mut quiet) = (0, 0);
    eventually_blocking("nothing more is received", || {
        let now = server.resident_kib();
        quiet = if now.abs_diff(seen) < 64 { quiet + 1 } else { 0 };
        seen = now;
        quiet == 100
    });
    assert_eq!(other.get("").unwrap().status, 200, "the other client gets a response");
    drop(clients);
    seen.saturating_sub(before) / CONNECTIONS as u64
}

#[test]
fn unread_responses_with_open_windows_use_bounded_memory() {
    for (upstream, most) in [
        (responding_upstream(unread_length), 12 << 10),
        (chunked_upstream(), 20 << 10),
        (http2_upstream(), 40 << 10),
    ] {
        let growth = stalled_kib(&upstream);
        println!("{upstream}: {growth} KiB for each connection, at most {most}");
        assert!(growth <= most, "{upstream}: {growth} KiB for each connection");
    }
}
