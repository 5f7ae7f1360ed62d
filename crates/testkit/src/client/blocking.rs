//! HTTP/1.1 without a runtime, for tests that start processes.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};

use crate::message::{Response, read_response_to};
use crate::wait::DEADLINE;

/// A connection that is kept open between requests. Reading has a deadline.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Opens a connection.
    pub fn open(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::with_capacity(64 << 10, stream) })
    }

    /// Sends a GET of `/hello` with these header lines, each with its CR LF.
    pub fn get(&mut self, headers: &str) -> io::Result<Response> {
        self.send(format!("GET /hello HTTP/1.1\r\nHost: test\r\n{headers}\r\n").as_bytes())
    }

    /// Sends exactly these bytes and reads the response.
    pub fn send(&mut self, request: &[u8]) -> io::Result<Response> {
        self.stream.get_mut().write_all(request)?;
        let method = request.split(|byte| *byte == b' ').next().unwrap_or_default();
        self.response(&String::from_utf8_lossy(method))
    }

    /// Reads the response to a request of this method.
    fn response(&mut self, method: &str) -> io::Result<Response> {
        let mut bytes = Vec::new();
        loop {
            let read = self.stream.fill_buf()?;
            let (before, is_ended) = (bytes.len(), read.is_empty());
            bytes.extend_from_slice(read);
            let added = read.len();
            if let Some((response, length)) = read_response_to(method, &bytes, is_ended) {
                // What follows the response stays unread.
                self.stream.consume(length - before);
                return Ok(response);
            }
            self.stream.consume(added);
            if is_ended {
                let got = String::from_utf8_lossy(&bytes).into_owned();
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("the connection closed after {got:?}"),
                ));
            }
        }
    }

    /// The socket, for messages that are sent or read in parts.
    pub fn into_stream(self) -> BufReader<TcpStream> {
        self.stream
    }
}

/// A GET of `/hello` over a connection of its own.
pub fn get(address: impl ToSocketAddrs, headers: &str) -> Response {
    let connection = Connection::open(address);
    let response = connection.and_then(|mut it| it.get(&format!("Connection: close\r\n{headers}")));
    response.unwrap_or_else(|error| panic!("GET /hello: {error}"))
}

/// A request over a connection of its own.
pub fn request(address: &str, method: &str, path: &str, headers: &str, body: &str) -> Response {
    try_request(address, method, path, headers, body)
        .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

/// The same; an error if there is no response.
pub fn try_request(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<Response> {
    let host = if headers.lines().any(|line| line.starts_with("Host:")) {
        String::new()
    } else {
        format!("Host: {address}\r\n")
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    Connection::open(address)?.send(request.as_bytes())
}

/// Reads up to the empty line that ends a head.
pub fn read_head(stream: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the connection closed after {head:?}"),
            ));
        }
    }
    Ok(head)
}

/// The `Content-Length` in a head.
pub fn content_length(head: &str) -> Option<u64> {
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    let (_, value) = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    Some(value.parse().expect("a length"))
}
