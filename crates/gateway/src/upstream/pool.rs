//! Connections of one core to its servers, kept for the next request.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;

use super::connect::Connector;
use super::server::{Busy, Server};
use crate::body::RequestBody;
use crate::runtime::LocalExecutor;

/// So many idle connections of one core to one server are kept.
const IDLE: usize = 256;

/// All connections of a core.
#[derive(Debug)]
pub(crate) struct Pools {
    connector: Connector,
    /// By the address of a server, which lives as long as its entry.
    idle: RefCell<HashMap<*const Server, Idle>>,
}

#[derive(Debug)]
struct Idle {
    server: Arc<Server>,
    http1: Vec<http1::SendRequest<RequestBody>>,
    /// One carries many requests at once.
    http2: Option<http2::SendRequest<RequestBody>>,
}

/// Why a server gave no response.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    /// It cannot be reached; the request is where it was.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The connection broke, or what came is not HTTP.
    #[error("no valid response came")]
    Broken(#[source] hyper::Error),
}

impl Pools {
    pub(crate) fn new(connector: Connector) -> Rc<Self> {
        Rc::new(Self { connector, idle: RefCell::default() })
    }

    /// Sends a request over a kept connection or a new one. It is taken once there is one.
    pub(crate) async fn send(
        self: &Rc<Self>,
        server: &Arc<Server>,
        request: &mut Option<Request<RequestBody>>,
        busy: Busy,
    ) -> Result<(Response<Incoming>, Lease), SendError> {
        loop {
            let mut sender = match self.take(server).await {
                Some(sender) => sender,
                // In a box: what opening takes would else be part of every request.
                None => match Box::pin(self.open(server)).await {
                    Ok(sender) => sender,
                    Err(error) => return Err(SendError::Connect(error)),
                },
            };
            let Some(mut sent) = request.take() else {
                return Err(SendError::Connect(io::ErrorKind::Other.into()));
            };
            server.address(&mut sent, matches!(sender, Sender::Http2(_)));
            match sender.send(sent).await {
                Ok(response) => {
                    return Ok((response, Lease { pools: Rc::clone(self), sender, busy }));
                }
                // The server had closed it before anything was sent: that is no answer, so another is asked.
                Err((_, Some(unsent))) => *request = Some(unsent),
                Err((error, None)) => return Err(SendError::Broken(error)),
            }
        }
    }

    async fn take(&self, server: &Server) -> Option<Sender> {
        loop {
            let kept = {
                let mut idle = self.idle.borrow_mut();
                let idle = idle.get_mut(&std::ptr::from_ref(server))?;
                match &idle.http2 {
                    Some(sender) if !sender.is_closed() => return Some(Sender::Http2(sender.clone())),
                    _ => idle.http1.pop()?,
                }
            };
            let mut kept = kept;
            if kept.is_ready() || kept.ready().await.is_ok() {
                return Some(Sender::Http1(kept));
            }
        }
    }

    /// Forgets the connections to servers that no upstream has any more.
    pub(crate) fn keep_only(&self, servers: impl Fn(&Arc<Server>) -> bool) {
        self.idle.borrow_mut().retain(|_, idle| servers(&idle.server));
    }

    fn with_idle(&self, server: &Arc<Server>, act: impl FnOnce(&mut Idle)) {
        let mut idle = self.idle.borrow_mut();
        act(idle.entry(Arc::as_ptr(server)).or_insert_with(|| Idle {
            server: Arc::clone(server),
            http1: Vec::new(),
            http2: None,
        }));
    }

    async fn open(&self, server: &Arc<Server>) -> io::Result<Sender> {
        let (stream, is_http2) = self.connector.connect(server).await?;
        let io = TokioIo::new(stream);
        if is_http2 {
            let (sender, connection) = http2::Builder::new(LocalExecutor)
                .timer(TokioTimer::new())
                .handshake(io)
                .await
                .map_err(io::Error::other)?;
            spawn(connection, server);
            self.with_idle(server, |idle| idle.http2 = Some(sender.clone()));
            return Ok(Sender::Http2(sender));
        }
        let (sender, connection) = http1::Builder::new().handshake(io).await.map_err(io::Error::other)?;
        // A task of its own, though each request wakes it twice: what many requests do in turn, parsing, sending,
        // receiving, is then done for all of them at once, and the processor keeps the code for it at hand.
        spawn(connection.with_upgrades(), server);
        Ok(Sender::Http1(sender))
    }
}

/// Lets a connection go on until it ends.
fn spawn(connection: impl Future + 'static, server: &Arc<Server>) {
    let connected = server.connected();
    tokio::task::spawn_local(async move {
        // That it broke off is told to whoever waits for an answer.
        connection.await;
        drop(connected);
    });
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

type Unsent = (hyper::Error, Option<Request<RequestBody>>);

impl Sender {
    async fn send(&mut self, request: Request<RequestBody>) -> Result<Response<Incoming>, Unsent> {
        let sent = match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender) => sender.try_send_request(request).await,
        };
        sent.map_err(|mut error| {
            let unsent = error.take_message();
            (error.into_error(), unsent)
        })
    }
}

/// A connection in use. It is closed unless it is given back.
#[derive(Debug)]
pub(crate) struct Lease {
    pools: Rc<Pools>,
    sender: Sender,
    busy: Busy,
}

impl Lease {
    /// The exchange is over: another may use the connection.
    pub(crate) fn give_back(self) {
        if let Sender::Http1(sender) = self.sender
            && !sender.is_closed()
        {
            self.pools.with_idle(self.busy.server(), |idle| {
                if idle.http1.len() < IDLE {
                    idle.http1.push(sender);
                }
            });
        }
    }
}
