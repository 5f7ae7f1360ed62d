//! A server that records the exact bytes it gets and does what it is told.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::message::{Request, read_request};

/// What an upstream does once it has a whole request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Sends this and keeps the connection.
    Reply(Vec<u8>),
    /// Sends this and closes.
    ReplyAndClose(Vec<u8>),
    /// Sends this and nothing more.
    ReplyAndHang(Vec<u8>),
}

/// A plain answer.
pub(crate) fn ok(body: &str) -> Act {
    Act::Reply(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes())
}

pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    record: Arc<Record>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Record {
    requests: Mutex<Vec<Request>>,
    /// What no upstream should ever see.
    wrong: Mutex<Vec<String>>,
    connections: AtomicUsize,
    open: AtomicUsize,
    bytes: AtomicUsize,
}

impl Upstream {
    pub(crate) async fn answering() -> Self {
        Self::doing(|_| ok("ok")).await
    }

    /// Does for the request of each number, from 0 on, what `script` says.
    pub(crate) async fn doing(script: impl Fn(usize) -> Act + Send + Sync + 'static) -> Self {
        Self::serving(move |number, _| script(number)).await
    }

    /// Replies to each request as `script` says.
    pub(crate) async fn replying(script: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        Self::serving(move |_, request| script(request)).await
    }

    async fn serving(script: impl Fn(usize, &Request) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let record = Arc::new(Record::default());
        let (shared, script) = (Arc::clone(&record), Arc::new(script));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let (record, script) = (Arc::clone(&shared), Arc::clone(&script));
                tokio::spawn(async move {
                    record.open.fetch_add(1, Ordering::SeqCst);
                    record.serve(stream, &*script).await;
                    record.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, record, accepting }
    }

    /// An address where nobody listens.
    pub(crate) async fn down() -> Self {
        let upstream = Self::answering().await;
        upstream.accepting.abort();
        // The listener is gone when its task is.
        super::until("the listener closes", || upstream.accepting.is_finished()).await;
        upstream
    }

    /// The whole requests so far. Fails if anything came that should not have.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let wrong = self.record.wrong.lock().expect("no panic").clone();
        assert!(wrong.is_empty(), "an upstream saw {wrong:?}");
        self.record.requests.lock().expect("no panic").clone()
    }

    /// How many whole requests came so far.
    pub(crate) fn count(&self) -> usize {
        self.record.requests.lock().expect("no panic").len()
    }

    /// The whole requests after the first `count`.
    pub(crate) fn since(&self, count: usize) -> Vec<Request> {
        self.record.requests.lock().expect("no panic")[count..].to_vec()
    }

    /// Removes and returns the bytes so far that are no HTTP/1.1 request.
    pub(crate) fn take_malformed(&self) -> Vec<String> {
        std::mem::take(&mut *self.record.wrong.lock().expect("no panic"))
    }

    pub(crate) fn last(&self) -> Request {
        self.requests().pop().expect("a request")
    }

    pub(crate) fn connections(&self) -> usize {
        self.record.connections.load(Ordering::SeqCst)
    }

    /// How many of them are open.
    pub(crate) fn open(&self) -> usize {
        self.record.open.load(Ordering::SeqCst)
    }

    /// How many bytes came in all.
    pub(crate) fn bytes(&self) -> usize {
        self.record.bytes.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Record {
    async fn serve(&self, mut stream: TcpStream, script: &(dyn Fn(usize, &Request) -> Act + Send + Sync)) {
        let mut unread = Vec::new();
        while let Ok(1..) = stream.read_buf(&mut unread).await {
            self.bytes.fetch_add(unread.len(), Ordering::SeqCst);
            while let Some(read) = read_request(&unread) {
                let (request, length) = match read {
                    Ok(read) => read,
                    Err(wrong) => return self.wrong.lock().expect("no panic").push(wrong),
                };
                unread.drain(..length);
                let act = {
                    let mut requests = self.requests.lock().expect("no panic");
                    let act = script(requests.len(), &request);
                    requests.push(request);
                    act
                };
                let (bytes, closes, hangs) = match act {
                    Act::Reply(bytes) => (bytes, false, false),
                    Act::ReplyAndClose(bytes) => (bytes, true, false),
                    Act::ReplyAndHang(bytes) => (bytes, false, true),
                };
                if stream.write_all(&bytes).await.is_err() || closes {
                    return;
                }
                if hangs {
                    // Until the gateway gives up.
                    let _ = stream.read_to_end(&mut unread).await;
                    return;
                }
            }
        }
    }
}
