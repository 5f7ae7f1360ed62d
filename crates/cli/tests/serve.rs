//! The real binary on a real port.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests speak through their names and fail by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

struct Server {
    process: Child,
    address: String,
    welcome: String,
}

impl Server {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut welcome = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        while !welcome.contains("Ctrl-C") {
            assert_ne!(output.read_line(&mut welcome).unwrap(), 0, "it ended after {welcome:?}");
        }
        let address =
            welcome.lines().next().and_then(|line| line.rsplit_once("http://")).unwrap().1.to_owned();
        Self { process, address, welcome }
    }

    fn get(&self, headers: &str) -> Response {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET /hello HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        Response { text }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Response {
    text: String,
}

impl Response {
    fn status(&self) -> &str {
        self.text.split(' ').nth(1).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.text.split("\r\n\r\n").next().unwrap().lines();
        lines
            .filter_map(|line| line.split_once(": "))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

#[test]
fn a_request_is_answered_with_its_limit() {
    let server = Server::start();
    let first = server.get("");
    assert_eq!(first.status(), "200", "{}", first.text);
    assert_eq!(first.header("X-RateLimit-Remaining"), Some("9"), "{}", first.text);
}

#[test]
fn the_welcome_says_what_to_try() {
    let server = Server::start();
    assert!(server.welcome.contains(&format!("curl -i http://{}/", server.address)), "{}", server.welcome);
    assert!(server.welcome.contains("10 requests per 1m"), "{}", server.welcome);
}

#[test]
fn a_taken_port_is_a_clear_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["serve", "--listen", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("cannot listen on {address}")), "{error}");
    assert!(error.contains("--listen"), "{error}");
}

#[test]
fn a_name_that_is_no_address_is_a_clear_error_without_a_wrong_hint() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["serve", "--listen", "8080"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("cannot listen on 8080"), "{error}");
    assert!(error.contains("127.0.0.1:8080"), "an example shows the form: {error}");
}

#[cfg(unix)]
#[test]
fn sigterm_stops_it_with_success() {
    let mut server = Server::start();
    server.get("");
    Command::new("kill").arg(server.process.id().to_string()).status().unwrap();
    assert_eq!(server.process.wait().unwrap().code(), Some(0));
}
