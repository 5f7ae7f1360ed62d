//! A client that sends exactly the bytes it is given.

use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::message::{Response, read_response};
use crate::wait::within;

/// An HTTP/1.1 connection over which a test writes bytes of its choice.
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
    /// Read, but not returned yet.
    unread: Vec<u8>,
}

impl RawClient {
    /// Opens a connection.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = within("connecting", TcpStream::connect(address)).await.expect("a connection");
        stream.set_nodelay(true).expect("a live socket");
        Self { stream, unread: Vec::new() }
    }

    /// Opens a connection from this address of the machine, as another client.
    pub async fn connect_from(source: IpAddr, address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((source, 0).into()).expect("an address of this machine");
        let stream = within("connecting", socket.connect(address)).await.expect("a connection");
        stream.set_nodelay(true).expect("a live socket");
        Self { stream, unread: Vec::new() }
    }

    /// Sends bytes. Returns whether all were written; a closed connection may be noticed only by reading.
    pub async fn send(&mut self, bytes: &[u8]) -> bool {
        within("sending", self.stream.write_all(bytes)).await.is_ok()
    }

    /// The next response; `None` if the connection ends before it is complete.
    pub async fn response(&mut self) -> Option<Response> {
        loop {
            if let Some((response, length)) = read_response(&self.unread, false) {
                self.unread.drain(..length);
                return Some(response);
            }
            if !self.read_some().await {
                let (response, length) = read_response(&self.unread, true)?;
                self.unread.drain(..length);
                return Some(response);
            }
        }
    }

    /// Closes the connection with a reset, as a client does that has crashed.
    pub fn reset(self) {
        // A closed connection is reset already.
        let _ = self.stream.set_zero_linger();
    }

    /// Closes the sending side.
    pub async fn shut_down(&mut self) {
        // A closed connection is shut down already.
        let _ = within("ending", self.stream.shutdown()).await;
    }

    /// Everything up to the end of the connection.
    pub async fn rest(&mut self) -> Vec<u8> {
        while self.read_some().await {}
        std::mem::take(&mut self.unread)
    }

    /// All responses up to the end of the connection.
    pub async fn responses(&mut self) -> Vec<Response> {
        let mut responses = Vec::new();
        while let Some(response) = self.response().await {
            responses.push(response);
        }
        responses
    }

    /// Waits for the first bytes, which remain to be read.
    pub async fn first_bytes(&mut self) -> &[u8] {
        self.read_some().await;
        &self.unread
    }

    /// Reads the next bytes. Returns whether there were any.
    async fn read_some(&mut self) -> bool {
        let read = within("reading", self.stream.read_buf(&mut self.unread)).await;
        // A reset ends the connection, too.
        matches!(read, Ok(1..))
    }
}
