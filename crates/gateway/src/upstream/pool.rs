//! Connections of one core to its servers, kept for the next request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use http::{Request, Response};
use http_body::Body;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::time::MissedTickBehavior;

use super::connect::Connector;
use super::http1_fast::Line;
use super::lease::{AttemptError, Http1, Http2, Lease, Way};
use super::server::{Connected, Server, Speaks};
use super::stream::{HyperIo, Stream};
use crate::exclusion::Held;
use crate::executor::LocalExecutor;
use crate::http::request_body::RequestBody;
use crate::http::response_body::Source;
use crate::resource_limits::ResourceLimits;

/// So many idle connections of one core to one server are kept.
const IDLE: usize = 256;
/// So much of an answer is read before it is known what it is: most are whole then.
const ROOM: usize = 16 << 10;
/// So often a request is sent again that a server has certainly not processed. Each attempt has another connection.
const RESENDS: u32 = 3;
/// Idle connections are swept at least so many times in the time for which they may be idle.
const SWEEPS: u32 = 4;

/// All connections of a core.
#[derive(Debug)]
pub(crate) struct Pools {
    connector: Connector,
    /// By the address of a server, which lives as long as its entry.
    idle: RefCell<HashMap<*const Server, Idle, RandomState>>,
    /// Where requests are written.
    pub(super) head: RefCell<Vec<u8>>,
    /// Where answers are read.
    pub(super) room: RefCell<Box<[u8]>>,
    pub(super) response_timeout: Duration,
    /// After how long without a word HTTP/2 servers are pinged.
    ping: Duration,
    /// How often idle connections are swept, and how many sweeps one survives.
    sweep: Duration,
    sweeps: u32,
}

#[derive(Debug)]
struct Idle {
    server: Arc<Server>,
    lines: Vec<IdleConnection<Line>>,
    http1: Vec<IdleConnection<Http1>>,
    /// Those in use, too: each carries many requests at once.
    http2: Vec<IdleConnection<Http2>>,
}

/// A connection in the pool.
#[derive(Debug)]
struct IdleConnection<C> {
    connection: C,
    /// How many sweeps have found it idle.
    sweeps: u32,
}

impl<C> IdleConnection<C> {
    fn new(connection: C) -> Self {
        Self { connection, sweeps: 0 }
    }

    /// Whether it stays, being `usable`.
    fn survives(&mut self, is_usable: bool, most: u32) -> bool {
        self.sweeps += 1;
        is_usable && self.sweeps <= most
    }
}

/// Why a server gave no response.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    /// It cannot be reached or takes no requests; this one is where it was.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The request's `Host` cannot be said to an HTTP/2 server.
    #[error("the host is no authority")]
    Host,
    /// The connection broke, or what came is not HTTP.
    #[error("no valid response came")]
    Broken(#[source] hyper::Error),
    /// Where the response ends can be read in two ways.
    #[error("the response has no clear end")]
    Framing,
    /// The connection broke before anything came.
    #[error("no response came")]
    Unanswered,
}

impl Pools {
    pub(crate) fn new(connector: Connector, bounds: &ResourceLimits) -> Rc<Self> {
        let sweep = bounds.tick().min(bounds.upstream_idle / SWEEPS).max(Duration::from_millis(1));
        let sweeps = bounds.upstream_idle.as_nanos().div_ceil(sweep.as_nanos());
        Rc::new(Self {
            connector,
            idle: RefCell::default(),
            head: RefCell::default(),
            room: RefCell::new(vec![0; ROOM].into()),
            response_timeout: bounds.answer,
            ping: bounds.upstream_ping,
            sweep,
            sweeps: u32::try_from(sweeps).unwrap_or(u32::MAX),
        })
    }

    /// Sends a request over a kept connection or a new one. It is taken, and `permits` with it, once there is one.
    /// `is_plain` says that nothing but the answer is expected.
    pub(crate) async fn send(
        self: &Rc<Self>,
        server: &Arc<Server>,
        request: &mut Option<Request<RequestBody>>,
        is_plain: bool,
        permits: &mut Held,
    ) -> Result<(Response<Source>, Lease), SendError> {
        let has_no_body = request.as_ref().is_some_and(|request| request.body().is_end_stream());
        let is_plain = is_plain && has_no_body && server.speaks == Speaks::Http1;
        let mut resends = 0;
        loop {
            let busy = server.begin();
            let (way, is_new) = match self.take(server, is_plain) {
                Some(way) => (way, false),
                // In a box: what opening takes would else be part of every request.
                None => match Box::pin(self.open(server, is_plain)).await {
                    Ok(way) => (way, true),
                    Err(error) => return Err(SendError::Connect(error)),
                },
            };
            let upload = request.as_ref().map(|request| request.body().handle()).unwrap_or_default();
            let mut lease = Lease::new(self, way, busy, std::mem::take(permits), upload);
            let is_refused = match lease.ask(request).await {
                Ok(response) => return Ok((response, lease)),
                Err(AttemptError::Failed(error)) => return Err(error),
                // The server had closed it before anything was sent: that is no answer, so another is asked.
                Err(AttemptError::NotSent) => false,
                Err(AttemptError::Refused) => true,
            };
            *permits = lease.give_up();
            // Idle connections are used up in the end.
            resends += u32::from(is_new || is_refused);
            if resends > RESENDS {
                return Err(SendError::Connect(io::ErrorKind::ConnectionRefused.into()));
            }
        }
    }

    fn take(&self, server: &Server, is_plain: bool) -> Option<Way> {
        let mut idle = self.idle.borrow_mut();
        let idle = idle.get_mut(&std::ptr::from_ref(server))?;
        while is_plain && let Some(kept) = idle.lines.pop() {
            if kept.connection.is_fresh() {
                return Some(Way::Line(kept.connection));
            }
        }
        if let Some(kept) = idle.http2.iter_mut().find(|kept| kept.connection.has_room()) {
            kept.sweeps = 0;
            return Some(Way::Http2(kept.connection.clone()));
        }
        while let Some(kept) = idle.http1.pop() {
            // One that is not ready is closed, or has not written all of a request.
            if kept.connection.sender.is_ready() {
                return Some(Way::Http1(kept.connection));
            }
        }
        None
    }

    /// Keeps a connection for the next request, unless a request is still being written over it.
    pub(super) fn keep(&self, server: &Arc<Server>, way: Way) {
        self.with_idle(server, |idle| match way {
            Way::Line(line) if !line.is_spent() && idle.lines.len() < IDLE => {
                idle.lines.push(IdleConnection::new(line));
            }
            Way::Http1(http1) if http1.sender.is_ready() && idle.http1.len() < IDLE => {
                idle.http1.push(IdleConnection::new(http1));
            }
            _ => {}
        });
    }

    /// Closes connections that have been idle for too long or that their servers have ended, again and again. Nobody
    /// else looks at them while they are idle, and a server may forget them without a word.
    pub(crate) async fn go(self: Rc<Self>) {
        let mut sweeps = tokio::time::interval(self.sweep);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            sweeps.tick().await;
            let most = self.sweeps;
            self.idle.borrow_mut().retain(|_, idle| {
                idle.lines.retain_mut(|kept| kept.survives(kept.connection.is_fresh(), most));
                idle.http1.retain_mut(|kept| kept.survives(kept.connection.sender.is_ready(), most));
                idle.http2.retain_mut(|kept| {
                    if kept.connection.streams() > 0 {
                        kept.sweeps = 0;
                    }
                    kept.survives(!kept.connection.sender.is_closed(), most)
                });
                !(idle.lines.is_empty() && idle.http1.is_empty() && idle.http2.is_empty())
            });
        }
    }

    /// Forgets the connections to servers that no upstream has any more.
    pub(crate) fn keep_only(&self, servers: impl Fn(&Arc<Server>) -> bool) {
        self.idle.borrow_mut().retain(|_, idle| servers(&idle.server));
    }

    /// No other request goes over an HTTP/2 connection; those in progress go on.
    pub(super) fn forget_http2(&self, server: &Arc<Server>, http2: &Http2) {
        self.with_idle(server, |idle| {
            idle.http2.retain(|kept| !Rc::ptr_eq(&kept.connection.most_streams, &http2.most_streams));
        });
    }

    fn with_idle(&self, server: &Arc<Server>, act: impl FnOnce(&mut Idle)) {
        let mut idle = self.idle.borrow_mut();
        act(idle.entry(Arc::as_ptr(server)).or_insert_with(|| Idle {
            server: Arc::clone(server),
            lines: Vec::new(),
            http1: Vec::new(),
            http2: Vec::new(),
        }));
    }

    async fn open(&self, server: &Arc<Server>, is_plain: bool) -> io::Result<Way> {
        let (stream, is_http2) = self.connector.connect(server).await?;
        match stream {
            Stream::Plain(stream) if is_plain && !is_http2 => {
                Ok(Way::Line(Line::new(stream, server.connected())))
            }
            stream if is_http2 => self.open_http2(server, stream).await,
            stream => open_http1(stream, server.connected()).await,
        }
    }

    async fn open_http2(&self, server: &Arc<Server>, stream: Stream) -> io::Result<Way> {
        let io = HyperIo::new(stream, server.connected(), true);
        let (sender, connection) = http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .keep_alive_interval(self.ping)
            .keep_alive_timeout(self.ping / 2)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(io))
            .await
            .map_err(io::Error::other)?;
        let most_streams = Rc::new(Cell::new(connection.current_max_send_streams()));
        let http2 = Http2 { sender, most_streams };
        let most_streams = Rc::downgrade(&http2.most_streams);
        tokio::task::spawn_local(async move {
            let mut connection = pin!(connection);
            // That it broke off is told to whoever waits for an answer.
            let _ = std::future::poll_fn(|cx| {
                let ended = connection.as_mut().poll(cx);
                if let Some(most_streams) = most_streams.upgrade() {
                    most_streams.set(connection.current_max_send_streams());
                }
                ended
            })
            .await;
        });
        self.with_idle(server, |idle| {
            // Of those that were opened at the same time one stays.
            if !idle.http2.iter().any(|kept| kept.connection.has_room()) {
                idle.http2.push(IdleConnection::new(http2.clone()));
            }
        });
        Ok(Way::Http2(http2))
    }
}

impl Http2 {
    /// How many streams it has: each has a clone, and the pool has one.
    fn streams(&self) -> usize {
        Rc::strong_count(&self.most_streams) - 1
    }

    /// Whether one more request can be sent at once. It would else wait behind others, for as long as they like.
    fn has_room(&self) -> bool {
        !self.sender.is_closed() && self.streams() < self.most_streams.get()
    }
}

async fn open_http1(stream: Stream, connected: Connected) -> io::Result<Way> {
    let io = HyperIo::new(stream, connected, false);
    let handoff = io.handoff();
    let (sender, connection) =
        http1::Builder::new().handshake(TokioIo::new(io)).await.map_err(io::Error::other)?;
    // A task of its own, though each request wakes it twice: what many requests do in turn, parsing, sending,
    // receiving, is then done for all of them at once, and the processor keeps the code for it at hand.
    drive(connection.with_upgrades());
    Ok(Way::Http1(Http1 { sender, handoff }))
}

/// Lets a connection go on until it ends. That it broke off is told to whoever waits for an answer.
pub(super) fn drive(connection: impl Future + 'static) {
    tokio::task::spawn_local(async move {
        connection.await;
    });
}
