//! A server that sends every body back.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::thread_per_connection;
use crate::client::{content_length, read_head};

/// Starts a server that sends the body of every request back as it arrives. Bodies need a `Content-Length`.
pub fn echo() -> SocketAddr {
    thread_per_connection(serve)
}

fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut write = stream.try_clone()?;
    let mut read = BufReader::with_capacity(64 << 10, stream);
    loop {
        let length = content_length(&read_head(&mut read)?).unwrap_or(0);
        write!(write, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")?;
        io::copy(&mut (&mut read).take(length), &mut write)?;
    }
}
