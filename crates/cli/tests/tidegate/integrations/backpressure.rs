//! Clients that never read: what the process keeps for them is bounded, and others are served.

use std::io::{ErrorKind, Write};
use std::iter;
use std::net::TcpStream;

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use tidegate_testkit::client::{
    DATA, END_HEADERS, END_STREAM, FrameClient, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, literal,
    request,
};
use tidegate_testkit::process::{PolicyFile, Tidegate};
use tidegate_testkit::wait::DEADLINE;

use super::protocols::{ServiceClient, descriptor, field, grpc_message};
use crate::program::command;

/// Clients that do not read, for each test.
const CLIENTS: usize = 4;
/// What all of them together may cost besides what their connections keep, in KiB: buffers of the workers, and memory that
/// the allocator does not return.
const SHARED: u64 = 12 << 10;
/// Requests of others that are answered while a socket takes no bytes. Then the service does not read from it: the workers have
/// had their turns.
const PROBES: usize = 40;
/// A service that reads more than this from a client that does not read has no bound.
const MAX_SENT: usize = 256 << 20;

/// How a client that does not read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FloodEnd {
    /// The service no longer reads.
    Blocked,
    /// The service has closed the connection.
    Closed,
    /// The service has read everything.
    Finished,
}

/// A service under test.
struct FloodedService {
    client: ServiceClient,
    server: Tidegate,
    _policy: PolicyFile,
}

impl FloodedService {
    fn start() -> Self {
        let client = ServiceClient::new();
        let policy = PolicyFile::new(&format!(
            "admin: off\n{}rate_limits: {{ default: {{ requests: 1000000, window: 1h }} }}\n",
            client.policy_key()
        ));
        let server = Tidegate::start(command().args(["serve", "--config", &policy.path()]));
        let service = Self { client, server, _policy: policy };
        // The first requests allocate memory that is not a cost of the flood.
        for _ in 0..PROBES {
            service.probe();
        }
        service
    }

    /// A request of another client, over a connection of its own, so that each worker gets some.
    fn probe(&self) {
        assert_eq!(request(&self.client.http, "GET", "/healthz", "", "").status, 200);
    }

    /// Sends `parts` until the service takes no more.
    fn flood(&self, mut stream: TcpStream, parts: impl Iterator<Item = Vec<u8>>) -> (TcpStream, FloodEnd) {
        stream.set_nonblocking(true).unwrap();
        let mut total = 0;
        for part in parts {
            let (mut sent, mut probes) = (0, 0);
            while sent < part.len() {
                match stream.write(&part[sent..]) {
                    Ok(written) => (sent, probes) = (sent + written, 0),
                    Err(error) if error.kind() != ErrorKind::WouldBlock => return (stream, FloodEnd::Closed),
                    Err(_) if probes == PROBES => return (stream, FloodEnd::Blocked),
                    Err(_) => {
                        self.probe();
                        probes += 1;
                    }
                }
            }
            total += sent;
            assert!(total < MAX_SENT, "the service reads on");
        }
        stream.set_nonblocking(false).unwrap();
        (stream, FloodEnd::Finished)
    }

    /// Sends requests on `count` streams whose responses may have a head, but no body, and waits for the heads.
    fn open_streams(
        &self,
        address: &str,
        count: usize,
        request: impl Fn(u32) -> Vec<u8>,
    ) -> (TcpStream, FloodEnd) {
        let (stream, end) = self.flood(connect_http2(address, 0), streams(request).take(count));
        assert_eq!(end, FloodEnd::Finished);
        let mut frames = FrameClient { stream };
        let mut heads = 0;
        while heads < count {
            heads += usize::from(frames.read().unwrap().0 == HEADERS);
        }
        (frames.stream, end)
    }

    /// Sends requests on ever new streams.
    fn flood_streams(&self, address: &str, request: impl Fn(u32) -> Vec<u8>) -> (TcpStream, FloodEnd) {
        self.flood(connect_http2(address, i32::MAX.unsigned_abs()), streams(request))
    }

    /// Sends requests on `count` streams and resets each after its request.
    fn reset_streams(
        &self,
        address: &str,
        count: usize,
        request: impl Fn(u32) -> Vec<u8>,
    ) -> (TcpStream, FloodEnd) {
        let cancel = 8_u32.to_be_bytes();
        let request = |stream| [request(stream), frame(RST_STREAM, 0, stream, &cancel)].concat();
        self.flood(connect_http2(address, 0), streams(request).take(count))
    }

    /// Floods with several clients that stay connected. Asserts that each costs at most `per_connection` KiB, and returns how
    /// their floods ended.
    fn assert_bounded(
        &self,
        per_connection: u64,
        flood: impl Fn(&Self) -> (TcpStream, FloodEnd),
    ) -> Vec<FloodEnd> {
        let before = self.server.resident_kib();
        let mut peak = before;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(flood(self));
            peak = peak.max(self.server.resident_kib());
        }
        peak = peak.max(self.server.peak_resident_kib());
        let max = per_connection * CLIENTS as u64 + SHARED;
        println!("{} KiB more of {max}", peak - before);
        assert!(peak - before <= max, "{} KiB more, at most {max} are allowed", peak - before);
        self.probe();
        clients.into_iter().map(|(_, end)| end).collect()
    }
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    // Small buffers of the system fill sooner.
    set_socket_recv_buffer_size(&stream, 4 << 10).unwrap();
    set_socket_send_buffer_size(&stream, 64 << 10).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// An HTTP/2 connection whose client allows `window` bytes of each response and any number in total.
fn connect_http2(address: &str, window: u32) -> TcpStream {
    let mut frames = FrameClient::over(connect(address));
    frames.send(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat()).unwrap();
    frames.send(WINDOW_UPDATE, 0, 0, &(i32::MAX - 65_535).to_be_bytes()).unwrap();
    let acknowledged = 1;
    frames.send(SETTINGS, acknowledged, 0, &[]).unwrap();
    // Until then the client may send less than the service allows later.
    while frames.read().unwrap().0 != WINDOW_UPDATE {}
    frames.stream
}

/// A POST on an HTTP/2 stream.
fn post(stream: u32, path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = [
        b"\x83\x86".to_vec(),
        literal(":path", path, false),
        literal(":authority", "localhost", false),
        literal("content-type", content_type, false),
        literal("te", "trailers", false),
    ];
    // Frames have at most 16 KiB unless the service allows more.
    let chunks = body.chunks(16 << 10);
    let last = chunks.len().saturating_sub(1);
    let data = chunks
        .enumerate()
        .map(|(index, chunk)| frame(DATA, if index == last { END_STREAM } else { 0 }, stream, chunk));
    [frame(HEADERS, END_HEADERS, stream, &head.concat())].into_iter().chain(data).collect::<Vec<_>>().concat()
}

/// The requests of ever new streams.
fn streams(request: impl Fn(u32) -> Vec<u8>) -> impl Iterator<Item = Vec<u8>> {
    (1..).step_by(2).map(request)
}

/// A batch whose answer is much longer than itself.
fn batch() -> String {
    let checks = vec![r#"{"rule":"x"}"#; 1_000];
    format!(r#"{{"checks":[{}]}}"#, checks.join(","))
}

#[test]
fn resp_clients_that_never_read_use_bounded_memory() {
    let service = FloodedService::start();
    // 256 KiB of replies, the replies to one more command, and 64 KiB of commands; a growing buffer may have twice its length.
    let ends = service.assert_bounded(1 << 10, |service| {
        service.flood(connect(&service.client.resp), iter::repeat(b"COMMAND\r\n".repeat(1_000)))
    });
    assert_eq!(ends, [FloodEnd::Blocked; CLIENTS]);
}

#[test]
fn resp_transactions_of_clients_that_never_read_use_bounded_memory() {
    let service = FloodedService::start();
    let throttle = b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n9\r\n$1\r\n1\r\n$2\r\n60\r\n";
    let transaction = [&b"MULTI\r\n"[..], &throttle.repeat(4_000), b"EXEC\r\n"].concat();
    // 256 KiB of a transaction and 4,096 replies in addition.
    let ends = service.assert_bounded(2 << 10, |service| {
        service.flood(connect(&service.client.resp), iter::repeat(transaction.clone()))
    });
    assert_eq!(ends, [FloodEnd::Blocked; CLIENTS]);
}

#[test]
fn http1_clients_that_never_read_use_bounded_memory() {
    let service = FloodedService::start();
    let body = batch();
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let pipelined = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
    // The responses to two batches, and one body.
    let ends = service.assert_bounded(2 << 10, |service| {
        service.flood(connect(&service.client.http), iter::repeat(pipelined.clone()))
    });
    assert_eq!(ends, [FloodEnd::Blocked; CLIENTS]);
}

/// What a client of HTTP/2 does that never reads bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamFlood {
    /// It opens as many streams as it may, and allows no bytes of their responses.
    Stalled,
    /// It opens ever new streams and reads nothing.
    Endless,
    /// It resets each stream after its request.
    Reset,
}

impl StreamFlood {
    const ALL: [Self; 3] = [Self::Stalled, Self::Endless, Self::Reset];

    /// Floods the service at `address`. A connection has at most `max_streams` streams and `max` KiB.
    fn assert_bounded(
        self,
        address: fn(&ServiceClient) -> &str,
        (max_streams, max): (usize, u64),
        request: impl Fn(u32) -> Vec<u8>,
    ) {
        let service = FloodedService::start();
        service.assert_bounded(max, |service| {
            let address = address(&service.client);
            match self {
                Self::Stalled => service.open_streams(address, max_streams, &request),
                Self::Endless => service.flood_streams(address, &request),
                Self::Reset => service.reset_streams(address, 100, &request),
            }
        });
    }
}

fn assert_http2_bounded(flood: StreamFlood) {
    let body = batch();
    let request = |stream| post(stream, "/v1/check", "application/json", body.as_bytes());
    // 32 responses to batches.
    flood.assert_bounded(|client| &client.http, (32, 32 * 400), request);
}

#[test]
fn http2_responses_that_are_never_read_use_bounded_memory() {
    assert_http2_bounded(StreamFlood::Stalled);
}

#[test]
fn http2_streams_without_end_use_bounded_memory() {
    assert_http2_bounded(StreamFlood::Endless);
}

#[test]
fn http2_streams_that_are_reset_use_bounded_memory() {
    assert_http2_bounded(StreamFlood::Reset);
}

#[test]
fn grpc_clients_that_never_read_use_bounded_memory() {
    let entries = descriptor(&[("rule", "default"), ("client", "user:bob")]);
    let call = grpc_message(&[field(1, b"tidegate"), field(2, &entries).repeat(64)].concat());
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let request = |stream| post(stream, path, "application/grpc", &call);
    for flood in StreamFlood::ALL {
        // 1 MiB of messages, and 128 replies.
        flood.assert_bounded(|client| &client.grpc, (128, 4 << 10), request);
    }
}

#[test]
fn grpc_reflection_clients_that_never_read_use_bounded_memory() {
    let question = field(4, b"envoy.service.ratelimit.v3.RateLimitService");
    let questions = grpc_message(&question).repeat(64);
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let request = |stream| post(stream, path, "application/grpc", &questions);
    for flood in StreamFlood::ALL {
        // 1 MiB of messages, and a few replies.
        flood.assert_bounded(|client| &client.grpc, (128, 2 << 10), request);
    }
}
