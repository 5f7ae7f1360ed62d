//! HTTP/1.1 by hand: a client that notices every failure, and a server that takes anything.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::process::DEADLINE;

/// A keep-alive connection.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::with_capacity(64 << 10, stream) })
    }

    pub(crate) fn get(&mut self, headers: &str) -> io::Result<Response> {
        self.send(format!("GET /hello HTTP/1.1\r\nHost: test\r\n{headers}\r\n").as_bytes())
    }

    /// Sends exactly these bytes and reads one response.
    pub(crate) fn send(&mut self, request: &[u8]) -> io::Result<Response> {
        self.stream.get_mut().write_all(request)?;
        let head = read_head(&mut self.stream)?;
        let mut body = vec![0; usize::try_from(length(&head).unwrap_or(0)).unwrap()];
        self.stream.read_exact(&mut body)?;
        Ok(Response { head, body: String::from_utf8_lossy(&body).into_owned() })
    }

    /// For what is not read or written whole.
    pub(crate) fn into_stream(self) -> BufReader<TcpStream> {
        self.stream
    }
}

/// One request over a connection of its own.
pub(crate) fn get(address: &str, headers: &str) -> Response {
    Connection::open(address).unwrap().get(&format!("Connection: close\r\n{headers}")).unwrap()
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub(crate) fn remaining(&self) -> u64 {
        let remaining = self.header("x-ratelimit-remaining");
        remaining.unwrap_or_else(|| panic!("{self:?}")).parse().unwrap()
    }
}

pub(crate) fn read_head(stream: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("it ended after {head:?}")));
        }
    }
    Ok(head)
}

pub(crate) fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

pub(crate) fn length(head: &str) -> Option<u64> {
    header(head, "content-length").map(|length| length.parse().unwrap())
}

/// A server that sends back every body, as it comes, with a thread for each connection.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            // A connection ends when the gateway ends it.
            std::thread::spawn(move || echo_over(stream));
        }
    });
    address
}

fn echo_over(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut write = stream.try_clone()?;
    let mut read = BufReader::with_capacity(64 << 10, stream);
    loop {
        let length = length(&read_head(&mut read)?).unwrap_or(0);
        write!(write, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")?;
        io::copy(&mut (&mut read).take(length), &mut write)?;
    }
}
