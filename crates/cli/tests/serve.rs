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

    fn number(&self, name: &str) -> u64 {
        self.header(name).unwrap_or_else(|| panic!("{name} in {}", self.text)).parse().unwrap()
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(self.text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

#[test]
fn within_the_limit_the_upstream_answers_and_headers_count_down() {
    let server = Server::start();
    let first = server.get("");
    assert_eq!(first.status(), "200", "{}", first.text);
    assert!(first.text.ends_with("You asked to GET /hello\n"), "{}", first.text);
    assert_eq!((first.number("X-RateLimit-Limit"), first.number("X-RateLimit-Remaining")), (10, 9));
    assert_eq!(first.header("RateLimit-Policy"), Some("\"demo\";q=10;w=60"));
    assert_eq!(first.header("RateLimit"), Some("\"demo\";r=9;t=6"));
    assert_eq!(first.header("Retry-After"), None);
    assert_eq!(server.get("").number("X-RateLimit-Remaining"), 8);
}

#[test]
fn over_the_limit_is_429_and_header_and_body_agree() {
    let server = Server::start();
    let statuses: Vec<_> = (0..10).map(|_| server.get("").status().to_owned()).collect();
    assert_eq!(statuses, ["200"; 10]);
    let refused = server.get("");
    assert_eq!(refused.status(), "429", "{}", refused.text);
    assert_eq!(refused.header("Content-Type"), Some("application/json"));
    let body = refused.json();
    assert_eq!(body["error"], "rate_limit_exceeded");
    assert_eq!(body["retry_after"], refused.number("Retry-After"));
    assert_eq!(body["retry_after"], refused.number("X-RateLimit-Retry-After"));
    assert_eq!(body["reset"], refused.number("X-RateLimit-Reset"));
    assert_eq!((&body["limit"], &body["remaining"]), (&10.into(), &0.into()));
    assert_eq!((&body["window"], &body["rule"]), (&"1m".into(), &"demo".into()));
    assert!((1..=6).contains(&refused.number("Retry-After")));
}

#[test]
fn each_api_key_has_a_limit_of_its_own() {
    let server = Server::start();
    for _ in 0..10 {
        server.get("X-API-Key: alice\r\n");
    }
    assert_eq!(server.get("X-API-Key: alice\r\n").status(), "429");
    assert_eq!(server.get("X-API-Key: bob\r\n").status(), "200");
    assert_eq!(server.get("").status(), "200");
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

#[cfg(unix)]
#[test]
fn sigterm_stops_it_with_success() {
    let mut server = Server::start();
    server.get("");
    Command::new("kill").arg(server.process.id().to_string()).status().unwrap();
    assert_eq!(server.process.wait().unwrap().code(), Some(0));
}
