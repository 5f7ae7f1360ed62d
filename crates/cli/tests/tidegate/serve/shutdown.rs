//! Graceful shutdown: no request in progress is lost.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use tidegate_testkit::client::{Connection, get, read_head};
use tidegate_testkit::server::echo;
use tidegate_testkit::wait::eventually_blocking;

use crate::program::serve;

#[test]
fn sigterm_exits_with_success() {
    let mut server = serve(&[]);
    get(&server.address, "");
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
}

/// Sends requests over one connection until a response has `Connection: close`. Anything else is a lost request.
fn send_until_closed(address: &str, asked: &Arc<AtomicU64>) -> JoinHandle<io::Result<()>> {
    let (address, asked) = (address.to_owned(), Arc::clone(asked));
    std::thread::spawn(move || {
        let mut connection = Connection::open(&address)?;
        loop {
            let response = connection.get("")?;
            assert_eq!(response.status, 200, "{response:?}");
            asked.fetch_add(1, Ordering::Relaxed);
            if response.header("connection").is_some_and(|value| value == "close") {
                return Ok(());
            }
        }
    })
}

/// Sends requests, each over a new connection, until the socket is closed.
fn send_over_new_connections(address: &str) -> JoinHandle<u64> {
    let address = address.to_owned();
    std::thread::spawn(move || {
        let mut asked = 0;
        while let Ok(mut connection) = Connection::open(&address) {
            match connection.get("Connection: close\r\n") {
                Ok(response) => assert_eq!(response.status, 200, "{response:?}"),
                // The system accepted the connection before the socket closed, and the gateway never read the request.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}"),
            }
            asked += 1;
        }
        asked
    })
}

#[test]
fn sigterm_under_load_loses_no_request() {
    for round in 0..5 {
        let upstream = format!("http://{}", echo());
        let mut server = serve(&["--upstream", &upstream, "--limit", "1000000/s"]);
        let asked = Arc::new(AtomicU64::new(0));
        let persistent: Vec<_> = (0..6).map(|_| send_until_closed(&server.address, &asked)).collect();
        let short_lived = send_over_new_connections(&server.address);
        eventually_blocking("300 requests are answered", || asked.load(Ordering::Relaxed) >= 300);
        server.signal("-TERM");
        for client in persistent {
            client.join().unwrap().unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        assert!(short_lived.join().unwrap() > 0);
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// The connection of the next request, whose head is read. The start opens one without a request.
fn accept_request(upstream: &TcpListener) -> TcpStream {
    loop {
        let (mut stream, _) = upstream.accept().unwrap();
        if read_head(&mut io::BufReader::new(&mut stream)).is_ok() {
            return stream;
        }
    }
}

#[test]
fn sigterm_completes_a_slow_request() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", upstream.local_addr().unwrap());
    let mut server = serve(&["--upstream", &url]);
    let address = server.address.clone();
    let client = std::thread::spawn(move || get(&address, ""));
    let mut asked = accept_request(&upstream);
    server.signal("-TERM");
    server.wait_for_log("stopping");
    // The socket is closed while the request is in progress.
    eventually_blocking("the socket is closed", || Connection::open(&server.address).is_err());
    asked.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate").unwrap();
    assert_eq!(client.join().unwrap().text(), "late");
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(asked.read(&mut [0; 1]).unwrap_or(0), 0);
}

#[test]
fn sigterm_closes_a_silent_upgraded_connection() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", upstream.local_addr().unwrap());
    let mut server = serve(&["--upstream", &url]);
    let mut client = Connection::open(&server.address).unwrap().into_stream();
    let request = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: words\r\n\r\n";
    client.get_mut().write_all(request).unwrap();
    let mut upgraded = accept_request(&upstream);
    upgraded.write_all(b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: words\r\n\r\n").unwrap();
    assert!(read_head(&mut client).unwrap().starts_with("HTTP/1.1 101 "));
    let mut received = [0; 5];
    client.get_mut().write_all(b"hello").unwrap();
    upgraded.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"hello");
    server.signal("-TERM");
    server.wait_for_log("stopping");
    // Neither side closes the connection.
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the client's connection is closed");
    assert_eq!(upgraded.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(server.wait().code(), Some(0));
}
