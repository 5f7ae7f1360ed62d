//! Connections of one core to its servers, kept for the next request.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::time::MissedTickBehavior;

use super::connect::{Connector, Handed, Stream};
use super::line::{Answered, Failed, Line, Plain, write_head};
use super::server::{Busy, Connected, Server, Speaks};
use crate::body::{RequestBody, Source};
use crate::runtime::LocalExecutor;

/// So many idle connections of one core to one server are kept.
const IDLE: usize = 256;
/// So much of an answer is read before it is known what it is: most are whole then.
const ROOM: usize = 16 << 10;

/// All connections of a core.
#[derive(Debug)]
pub(crate) struct Pools {
    connector: Connector,
    /// By the address of a server, which lives as long as its entry.
    idle: RefCell<HashMap<*const Server, Idle, RandomState>>,
    /// Where requests are written.
    head: RefCell<Vec<u8>>,
    /// Where answers are read.
    room: RefCell<Box<[u8]>>,
}

#[derive(Debug)]
struct Idle {
    server: Arc<Server>,
    lines: Vec<Line>,
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
    /// The connection broke before anything came.
    #[error("no response came")]
    Unanswered,
}

impl Pools {
    pub(crate) fn new(connector: Connector) -> Rc<Self> {
        let (idle, head) = (RefCell::default(), RefCell::default());
        Rc::new(Self { connector, idle, head, room: RefCell::new(vec![0; ROOM].into()) })
    }

    /// Sends a request over a kept connection or a new one. It is taken once there is one. `is_plain` says that nothing
    /// but the answer is expected.
    pub(crate) async fn send(
        self: &Rc<Self>,
        server: &Arc<Server>,
        request: &mut Option<Request<RequestBody>>,
        is_plain: bool,
        busy: Busy,
    ) -> Result<(Response<Source>, Lease), SendError> {
        let has_no_body = request.as_ref().is_some_and(|request| request.body().is_end_stream());
        let is_plain = is_plain && has_no_body && server.speaks == Speaks::Http1;
        loop {
            let way = match self.take(server, is_plain).await {
                Some(way) => way,
                // In a box: what opening takes would else be part of every request.
                None => match Box::pin(self.open(server, is_plain)).await {
                    Ok(way) => way,
                    Err(error) => return Err(SendError::Connect(error)),
                },
            };
            let Some(addressed) = request else {
                return Err(SendError::Connect(io::ErrorKind::Other.into()));
            };
            server.address(addressed, matches!(way, Way::Http2(_)));
            let answered = match way {
                Way::Line(line) => self.ask(line, request).await?,
                // In a box as well: what hyper takes along is large.
                other => Box::pin(ask_hyper(other, request)).await?,
            };
            // The server had closed it before anything was sent: that is no answer, so another is asked.
            if let Some((response, way)) = answered {
                return Ok((response, Lease { pools: Rc::clone(self), way, busy }));
            }
        }
    }

    /// Asks over a line; `None` if nothing could be sent. The request is left where it is, without its headers.
    async fn ask(
        &self,
        mut line: Line,
        request: &mut Option<Request<RequestBody>>,
    ) -> Result<Option<(Response<Source>, Way)>, SendError> {
        let Some(asked) = request else { return Ok(None) };
        let sent = {
            let mut head = self.head.take();
            head.clear();
            write_head(&mut head, asked);
            let sent = line.send(&head).await;
            self.head.replace(head);
            sent
        };
        match sent {
            Ok(()) => {}
            Err(Failed::Unsent) => return Ok(None),
            Err(Failed::Unanswered) => return Err(SendError::Unanswered),
        }
        let method = asked.method().clone();
        let answered =
            poll_fn(|cx| line.poll_answer(cx, &method, &mut self.room.borrow_mut(), asked.headers_mut()));
        match answered.await {
            Ok(Answered::Plain(Plain { status, headers, body })) => {
                let mut response = Response::new(Source::Plain(body));
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                Ok(Some((response, Way::Line(line))))
            }
            Ok(Answered::Other(read)) => Box::pin(hand_over(line, read, request)).await,
            Err(_) => Err(SendError::Unanswered),
        }
    }

    async fn take(&self, server: &Server, is_plain: bool) -> Option<Way> {
        loop {
            let kept = {
                let mut idle = self.idle.borrow_mut();
                let idle = idle.get_mut(&std::ptr::from_ref(server))?;
                while is_plain && let Some(line) = idle.lines.pop() {
                    if line.is_fresh() {
                        return Some(Way::Line(line));
                    }
                }
                match &idle.http2 {
                    Some(sender) if !sender.is_closed() => return Some(Way::Http2(sender.clone())),
                    _ => idle.http1.pop()?,
                }
            };
            let mut kept = kept;
            if kept.is_ready() || kept.ready().await.is_ok() {
                return Some(Way::Http1(kept));
            }
        }
    }

    /// Lets go of lines that their servers have ended, again and again: nobody else looks at them while they rest.
    pub(crate) async fn go(self: Rc<Self>, every: Duration) {
        let mut looks = tokio::time::interval(every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            for idle in self.idle.borrow_mut().values_mut() {
                idle.lines.retain(Line::is_fresh);
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
            lines: Vec::new(),
            http1: Vec::new(),
            http2: None,
        }));
    }

    async fn open(&self, server: &Arc<Server>, is_plain: bool) -> io::Result<Way> {
        let (stream, is_http2) = self.connector.connect(server).await?;
        let io = match stream {
            Stream::Plain(stream) if is_plain && !is_http2 => {
                return Ok(Way::Line(Line::new(stream, server.connected())));
            }
            stream => TokioIo::new(stream),
        };
        if is_http2 {
            let (sender, connection) = http2::Builder::new(LocalExecutor)
                .timer(TokioTimer::new())
                .handshake(io)
                .await
                .map_err(io::Error::other)?;
            spawn(connection, server.connected());
            self.with_idle(server, |idle| idle.http2 = Some(sender.clone()));
            return Ok(Way::Http2(sender));
        }
        let (sender, connection) = http1::Builder::new().handshake(io).await.map_err(io::Error::other)?;
        // A task of its own, though each request wakes it twice: what many requests do in turn, parsing, sending,
        // receiving, is then done for all of them at once, and the processor keeps the code for it at hand.
        spawn(connection.with_upgrades(), server.connected());
        Ok(Way::Http1(sender))
    }
}

/// Lets a connection go on until it ends.
fn spawn(connection: impl Future + 'static, connected: Connected) {
    tokio::task::spawn_local(async move {
        // That it broke off is told to whoever waits for an answer.
        connection.await;
        drop(connected);
    });
}

/// Has hyper judge an answer that is not plain, of which this has been read.
async fn hand_over(
    line: Line,
    read: Bytes,
    request: &mut Option<Request<RequestBody>>,
) -> Result<Option<(Response<Source>, Way)>, SendError> {
    let (stream, connected) = line.into_parts();
    let io = TokioIo::new(Stream::Handed(Box::new(Handed::new(stream, read))));
    let (sender, connection) = http1::Builder::new().handshake(io).await.map_err(SendError::Broken)?;
    spawn(connection.with_upgrades(), connected);
    // Written to nobody; its method says what kind of answer it is.
    if let Some(request) = request {
        *request.headers_mut() = HeaderMap::new();
    }
    match ask_hyper(Way::Http1(sender), request).await {
        Ok(Some(answered)) => Ok(Some(answered)),
        // It was sent, whatever hyper says.
        Ok(None) => Err(SendError::Unanswered),
        Err(error) => Err(error),
    }
}

/// Asks over a connection that is hyper's; `None` if nothing was sent.
async fn ask_hyper(
    mut way: Way,
    request: &mut Option<Request<RequestBody>>,
) -> Result<Option<(Response<Source>, Way)>, SendError> {
    let Some(sent) = request.take() else { return Ok(None) };
    let answered = match &mut way {
        Way::Http1(sender) => sender.try_send_request(sent).await,
        Way::Http2(sender) => sender.try_send_request(sent).await,
        Way::Line(_) => return Ok(None),
    };
    match answered {
        Ok(response) => Ok(Some((response.map(Source::Hyper), way))),
        Err(mut error) => match error.take_message() {
            Some(unsent) => {
                *request = Some(unsent);
                Ok(None)
            }
            None => Err(SendError::Broken(error.into_error())),
        },
    }
}

/// How a server is asked.
#[derive(Debug)]
enum Way {
    Line(Line),
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

/// A connection in use. It is closed unless it is given back.
#[derive(Debug)]
pub(crate) struct Lease {
    pools: Rc<Pools>,
    way: Way,
    busy: Busy,
}

impl Lease {
    /// The line that a plain answer comes over.
    pub(crate) fn line(&mut self) -> Option<&mut Line> {
        match &mut self.way {
            Way::Line(line) => Some(line),
            Way::Http1(_) | Way::Http2(_) => None,
        }
    }

    /// The exchange is over: another may use the connection.
    pub(crate) fn give_back(self) {
        let Self { pools, way, busy } = self;
        pools.with_idle(busy.server(), |idle| match way {
            Way::Line(line) if !line.is_spent() && idle.lines.len() < IDLE => idle.lines.push(line),
            Way::Http1(sender) if !sender.is_closed() && idle.http1.len() < IDLE => idle.http1.push(sender),
            _ => {}
        });
    }
}
