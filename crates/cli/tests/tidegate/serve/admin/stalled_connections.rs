//! Connections to the admin listener that send no complete request.

use std::io::{Read, Write};
use std::net::TcpStream;

use tidegate_testkit::client::request;
use tidegate_testkit::wait::DEADLINE;

use super::AdminGateway;

/// Opens `count` connections. Each sends `bytes` and then nothing.
fn stalled(address: &str, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        // An earlier one may have been closed for a later one; a new one is open.
        stream.write_all(bytes).unwrap();
        stream
    };
    (0..count).map(connect).collect()
}

fn assert_healthy(gateway: &AdminGateway) {
    assert_eq!(request(&gateway.admin, "GET", "/healthz", "", "").status, 200);
    assert_eq!(request(&gateway.admin, "GET", "/readyz", "", "").status, 200);
}

#[test]
fn health_request_with_64_silent_connections_gets_200() {
    let gateway = AdminGateway::start("");
    let _silent = stalled(&gateway.admin, 64, b"");
    assert_healthy(&gateway);
    assert_eq!(gateway.send("GET", "/v1/status", "").status, 200);
}

#[test]
fn health_request_with_1000_silent_connections_gets_200_and_the_oldest_are_closed() {
    let gateway = AdminGateway::start("");
    let mut silent = stalled(&gateway.admin, 1_000, b"");
    assert_healthy(&gateway);
    assert_eq!(gateway.send("GET", "/v1/status", "").status, 200);
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "it is closed to make room");
}

#[test]
fn health_request_with_unfinished_requests_gets_200() {
    let gateway = AdminGateway::start("");
    let token = format!("Host: {}\r\nAuthorization: Bearer {}\r\n", gateway.admin, gateway.token);
    for unfinished in [
        "GET /healthz HTTP/1.1\r\nHost:",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
        "POST /v1/bans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
        &format!("POST /v1/bans HTTP/1.1\r\n{token}Content-Length: 1000\r\n\r\n"),
    ] {
        let _stalled = stalled(&gateway.admin, 100, unfinished.as_bytes());
        assert_healthy(&gateway);
    }
}
