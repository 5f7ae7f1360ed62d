//! A server that records requests and sends the exact bytes of a script.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;

use super::AcceptLoop;
use crate::message::{Request, read_request};
use crate::port::ANY;
use crate::wait::within;

/// What a server does once it has a complete request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Sends these bytes and keeps the connection.
    Keep(Vec<u8>),
    /// Sends these bytes and closes the connection.
    Close(Vec<u8>),
    /// Sends these bytes and nothing more, and keeps the connection open.
    Hang(Vec<u8>),
}

/// A plain response with status 200.
pub fn ok(body: &str) -> Reply {
    Reply::Keep(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes())
}

/// What a server has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections so far.
    pub connections: usize,
    /// Connections that are open.
    pub open: usize,
    /// Bytes received.
    pub bytes: usize,
    /// Complete requests.
    pub requests: usize,
}

/// A server that parses requests strictly, records them and responds by a script.
#[derive(Debug)]
pub struct RecordingServer {
    /// Where it listens.
    pub address: SocketAddr,
    record: Arc<Record>,
    _port: Port,
}

/// What holds the port.
#[derive(Debug)]
enum Port {
    Listening {
        _accepting: AcceptLoop,
    },
    /// Bound, so that no other process gets it, but not listening.
    Reserved {
        _socket: TcpSocket,
    },
}

#[derive(Debug, Default)]
struct Record {
    requests: Mutex<Vec<Request>>,
    /// Bytes that no proxy should ever send.
    malformed: Mutex<Vec<String>>,
    counts: watch::Sender<Counts>,
}

impl RecordingServer {
    /// Responds to every request with `ok`.
    pub async fn start() -> Self {
        Self::scripted(|_| ok("ok")).await
    }

    /// Responds by the number of a request, from 0 on.
    pub async fn scripted(script: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::serving(move |number, _| script(number)).await
    }

    /// Responds by the content of a request.
    pub async fn replying(script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::serving(move |_, request| script(request)).await
    }

    async fn serving(script: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Self {
        let record = Arc::new(Record::default());
        let (shared, script) = (Arc::clone(&record), Arc::new(script));
        let accepting = AcceptLoop::start(move |_, stream| {
            shared.counts.send_modify(|counts| counts.connections += 1);
            let (open, script) = (OpenGuard::new(Arc::clone(&shared)), Arc::clone(&script));
            async move { open.0.serve(stream, &*script).await }
        })
        .await;
        Self { address: accepting.address, record, _port: Port::Listening { _accepting: accepting } }
    }

    /// An address at which nothing listens.
    pub fn unreachable() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(ANY).expect("a free port");
        let address = socket.local_addr().expect("an address");
        Self { address, record: Arc::default(), _port: Port::Reserved { _socket: socket } }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The complete requests so far. Fails if bytes arrived that are no HTTP/1.1 request.
    pub fn requests(&self) -> Vec<Request> {
        let malformed = self.record.malformed.lock().expect("no panic").clone();
        assert!(malformed.is_empty(), "a server received {malformed:?}");
        self.record.requests.lock().expect("no panic").clone()
    }

    /// The latest complete request.
    pub fn last(&self) -> Request {
        self.requests().pop().expect("a request")
    }

    /// The complete requests after the first `count`.
    pub fn since(&self, count: usize) -> Vec<Request> {
        self.record.requests.lock().expect("no panic")[count..].to_vec()
    }

    /// Removes and returns the bytes so far that are no HTTP/1.1 request.
    pub fn take_malformed(&self) -> Vec<String> {
        std::mem::take(&mut *self.record.malformed.lock().expect("no panic"))
    }

    /// The number of complete requests so far.
    pub fn count(&self) -> usize {
        self.counts().requests
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.counts().connections
    }

    /// The number of open connections.
    pub fn open(&self) -> usize {
        self.counts().open
    }

    /// The number of bytes so far.
    pub fn bytes(&self) -> usize {
        self.counts().bytes
    }

    fn counts(&self) -> Counts {
        *self.record.counts.borrow()
    }

    /// Waits until the counts fulfil a condition.
    pub async fn until(&self, what: &str, condition: impl FnMut(&Counts) -> bool) {
        let mut counts = self.record.counts.subscribe();
        within(what, counts.wait_for(condition)).await.expect("a running server");
    }
}

/// A connection that counts as open until it is dropped.
struct OpenGuard(Arc<Record>);

impl OpenGuard {
    fn new(record: Arc<Record>) -> Self {
        record.counts.send_modify(|counts| counts.open += 1);
        Self(record)
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.counts.send_modify(|counts| counts.open -= 1);
    }
}

impl Record {
    async fn serve(&self, mut stream: TcpStream, script: &(dyn Fn(usize, &Request) -> Reply + Send + Sync)) {
        let mut unread = Vec::new();
        while let Ok(read @ 1..) = stream.read_buf(&mut unread).await {
            self.counts.send_modify(|counts| counts.bytes += read);
            while let Some(parsed) = read_request(&unread) {
                let (request, length) = match parsed {
                    Ok(parsed) => parsed,
                    Err(malformed) => return self.malformed.lock().expect("no panic").push(malformed),
                };
                unread.drain(..length);
                let reply = {
                    let mut requests = self.requests.lock().expect("no panic");
                    let reply = script(requests.len(), &request);
                    requests.push(request);
                    reply
                };
                self.counts.send_modify(|counts| counts.requests += 1);
                let (bytes, closes, hangs) = match reply {
                    Reply::Keep(bytes) => (bytes, false, false),
                    Reply::Close(bytes) => (bytes, true, false),
                    Reply::Hang(bytes) => (bytes, false, true),
                };
                if stream.write_all(&bytes).await.is_err() || closes {
                    return;
                }
                if hangs {
                    // Waits until the peer closes.
                    let _ = stream.read_to_end(&mut unread).await;
                    return;
                }
            }
        }
    }
}
