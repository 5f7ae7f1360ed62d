//! Sends requests to servers over HTTP/1.1 or HTTP/2.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tidegate_store::Clock;

use super::client_shares::ClientId;
use super::connect::Connector;
use super::connection_slots::{ConnectionSlot, NoConnectionSlot, PoolPressure};
use super::forwarded_request::ForwardedRequest;
use super::head_profile::HeadProfile;
use super::http1_fast::{IoBuffers, PlainConn};
use super::opening::Openings;
use super::permits::ExchangePermits;
use super::pool::{ConnPool, KeepSettings};
use super::pooled_conn::{
    AttemptError, Conn, ConnNeed, ConnSettings, Http1Conn, Http2Conn, INITIAL_STREAMS, MAX_STREAMS,
    PooledConn,
};
use super::server::{Server, ServerProtocol, UpstreamGroup};
use super::stream::{HyperIo, UpstreamStream};
use crate::executor::LocalExecutor;
use crate::http::response_body::UpstreamBody;
use crate::resource_limits::ResourceLimits;

/// How often a request that the server has certainly not processed is sent again, each time over another connection.
pub(super) const MAX_RESENDS: u32 = 3;
/// How much of a response an HTTP/2 server may send before the client reads it. More would be faster only if a round trip
/// to the server takes several milliseconds.
const STREAM_WINDOW: u32 = 128 << 10;
/// The same for all streams of a connection: responses that nobody reads leave room for all others. It is larger than they
/// need, because h2 closes a connection with more unread small frames than half of this window, at 256 bytes for each.
const CONN_WINDOW: u32 = 256 << 20;
const _: () = assert!(CONN_WINDOW as usize >= 16 * STREAM_WINDOW as usize * MAX_STREAMS);
/// How much of a request body is buffered for an HTTP/2 server that does not read it.
const SEND_BUFFER: usize = 64 << 10;
/// hyper does not allow a smaller limit of a response head.
const MIN_MAX_HEAD: u32 = 8 << 10;
/// Idle connections are swept at least this often within their idle timeout.
const SWEEPS_PER_TIMEOUT: u32 = 4;

/// The HTTP client of one worker: the fast path for HTTP/1.1, and hyper's HTTP/1.1 and HTTP/2.
#[derive(Debug)]
pub(crate) struct Transport {
    connector: Connector,
    pub(super) pool: ConnPool,
    openings: Openings,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) buffers: IoBuffers,
    pub(super) pressure: Arc<PoolPressure>,
    /// Quiet time after which HTTP/2 servers are pinged.
    ping: Duration,
    /// Bytes of a response head.
    max_head: u32,
    /// The longest interval between sweeps of idle connections.
    max_sweep: Duration,
    /// How often idle connections are swept.
    sweep: Cell<Duration>,
}

/// Why there is no response.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    /// The server cannot be reached or accepts no requests. Nothing was sent; another server can be tried.
    #[error("cannot connect to the server")]
    Connect(#[source] io::Error),
    /// A server of HTTP/2 says that it has not processed the request, over several connections. It may refuse this one only.
    #[error("the server refuses the request")]
    Refused,
    /// The `Host` is not a valid `:authority` for an HTTP/2 server.
    #[error("invalid Host header")]
    Host,
    /// The upstream has as many connections as it may have.
    #[error("no connection slot is free")]
    NoSlot,
    /// The connection broke, or the response is not valid HTTP.
    #[error("invalid response")]
    Broken(#[source] hyper::Error),
    /// The end of the response is ambiguous.
    #[error("ambiguous response framing")]
    Framing,
    /// The connection broke before the first byte of a response.
    #[error("connection closed before the response")]
    NoResponse,
    /// The same over a connection that several clients used: any of them may have caused it.
    #[error("connection of several clients closed before the response")]
    NoResponseOfSeveral,
    /// A connection broke that other requests used too, and one of them reports it: it says no more about the server.
    #[error("shared connection closed before the response")]
    NoResponseShared,
    /// The client has chosen a request head that servers may refuse, and there is no response.
    #[error("no response to an unusual request head")]
    UnusualHead,
    /// The head of the response is too large, as a client may cause with a long URL that the response repeats.
    #[error("response head too large")]
    ResponseHead,
    /// A part of the body was sent earlier and is not kept. Nothing was sent to this server.
    #[error("the request cannot be sent again")]
    NotRepeatable,
}

impl Transport {
    pub(crate) fn new(
        connector: Connector,
        limits: &ResourceLimits,
        pressure: Arc<PoolPressure>,
        clock: &Arc<dyn Clock>,
    ) -> Rc<Self> {
        Rc::new(Self {
            connector,
            pool: ConnPool::new(),
            openings: Openings::default(),
            clock: Arc::clone(clock),
            buffers: IoBuffers::new(),
            pressure,
            ping: limits.upstream_ping,
            max_head: limits.response_head_bytes.max(MIN_MAX_HEAD),
            max_sweep: limits.tick(),
            sweep: Cell::new(limits.tick()),
        })
    }

    /// Sweeps as often as the shortest idle timeout needs.
    pub(crate) fn set_shortest_idle(&self, idle: Duration) {
        self.sweep.set(self.max_sweep.min(idle / SWEEPS_PER_TIMEOUT).max(Duration::from_millis(1)));
    }

    /// Sends a request over a pooled connection or a new one, and waits for the head of the response. The connection has
    /// `permits` for the time of the attempt. `slot` is the one of a new connection, if it is reserved.
    pub(crate) async fn send(
        self: &Rc<Self>,
        upstream: &UpstreamGroup,
        (server, mut slot): (&Arc<Server>, Option<ConnectionSlot>),
        request: &mut ForwardedRequest,
        permits: &ExchangePermits,
    ) -> Result<(Response<UpstreamBody>, PooledConn), SendError> {
        let timeouts = &upstream.resilience.timeouts;
        let settings = ConnSettings {
            keep: KeepSettings { idle: timeouts.idle, slots: upstream.resilience.connections.clone() },
            request_timeout: timeouts.request,
        };
        loop {
            // A connection that has broken may change it.
            let need = ConnNeed::new(upstream, server, request);
            let in_flight = server.begin();
            let (conn, is_new) = if let Some(conn) = self.pool.take(server, need, &*upstream.clock) {
                (conn, false)
            } else {
                let reserved = slot.take();
                // Boxed because its state would otherwise be part of every request.
                let opening = Box::pin(self.open_or_join(upstream, (server, reserved), &settings.keep, need));
                (opening.await?, true)
            };
            // Not needed with a connection.
            slot = None;
            let mut conn =
                PooledConn::new(self, (conn, settings.clone()), in_flight, permits.clone(), request);
            let is_refused = match conn.exchange(request).await {
                Ok(response) => return Ok((response, conn)),
                Err(AttemptError::Failed(error)) => return Err(error),
                // The server had closed an idle connection.
                Err(AttemptError::NotSent) => false,
                Err(AttemptError::Refused) => true,
            };
            conn.give_up();
            // Only new connections count: the number of idle ones is finite.
            if (is_new || is_refused) && !request.count_resend() {
                let is_unusual = || request.head_profile().is_some_and(HeadProfile::is_unusual);
                return Err(match is_refused {
                    true if is_unusual() => SendError::UnusualHead,
                    true => SendError::Refused,
                    false => SendError::Connect(io::ErrorKind::ConnectionRefused.into()),
                });
            }
        }
    }

    /// Sweeps the pool periodically. Nothing else reads from idle connections, so nothing else notices that a server has
    /// closed one.
    pub(crate) async fn run(self: Rc<Self>) {
        let mut pressure = self.pressure.subscribe();
        let mut seen = *pressure.borrow_and_update();
        loop {
            let period = self.sweep.get();
            tokio::select! {
                () = tokio::time::sleep(period) => self.pool.sweep(period),
                Ok(()) = pressure.changed() => {
                    let requested = *pressure.borrow_and_update();
                    self.pool.close_idle_for_waiting(requested.wrapping_sub(seen));
                    seen = requested;
                }
            }
        }
    }

    /// Closes the idle connections to servers for which `is_used` is false.
    pub(crate) fn keep_only(&self, is_used: impl Fn(&Arc<Server>) -> bool) {
        self.pool.keep_only(is_used);
    }

    /// Opens a connection, or waits for one that another request opens and that it can share.
    async fn open_or_join(
        &self,
        upstream: &UpstreamGroup,
        (server, reserved): (&Arc<Server>, Option<ConnectionSlot>),
        settings: &KeepSettings,
        need: ConnNeed,
    ) -> Result<Conn, SendError> {
        let is_shared = match server.protocol {
            ServerProtocol::Http1 => false,
            ServerProtocol::Http2 => !need.is_alone,
            ServerProtocol::Tls => !need.is_alone && self.pool.has_http2(server),
        };
        let mut guard = None;
        if is_shared {
            if self.openings.join(server, need.owner).await {
                return Err(SendError::Connect(io::ErrorKind::TimedOut.into()));
            }
            if let Some(conn) = self.pool.take(server, need, &*upstream.clock) {
                return Ok(conn);
            }
            guard = Some(self.openings.begin(server, need.owner));
        }
        let opened = self.open(upstream, (server, reserved), settings, need).await;
        if let (Err(SendError::Connect(error)), Some(guard)) = (&opened, &guard)
            && error.kind() == io::ErrorKind::TimedOut
        {
            guard.time_out();
        }
        // A connection that was opened is in the pool.
        drop(guard);
        opened
    }

    async fn open(
        &self,
        upstream: &UpstreamGroup,
        (server, reserved): (&Arc<Server>, Option<ConnectionSlot>),
        settings: &KeepSettings,
        need: ConnNeed,
    ) -> Result<Conn, SendError> {
        let slot = match reserved {
            Some(slot) => Some(slot),
            None => self.acquire_slot(upstream, need).await.map_err(|NoConnectionSlot| SendError::NoSlot)?,
        };
        let timeout = upstream.resilience.timeouts.connect;
        let (stream, is_http2) = self.connector.connect(server, timeout).await.map_err(|error| {
            server.suspects.clear();
            SendError::Connect(error)
        })?;
        let count = server.count_connection(slot);
        let opened = match stream {
            UpstreamStream::Plain(stream) if need.is_plain && !is_http2 => {
                Ok(Conn::Plain(PlainConn::new(stream, count)))
            }
            stream if is_http2 => {
                self.open_http2(HyperIo::new(stream, count, true), need.owner).await.map(|http2| {
                    if !need.is_alone {
                        self.pool.add_http2(server, &http2, settings);
                    }
                    Conn::Http2(http2)
                })
            }
            stream => self.open_http1(HyperIo::new(stream, count, false)).await.map(Conn::Http1),
        };
        opened.map_err(|error| SendError::Connect(io::Error::other(error)))
    }

    async fn open_http2(&self, io: HyperIo, owner: Option<ClientId>) -> hyper::Result<Http2Conn> {
        let (sender, connection) = http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONN_WINDOW)
            .initial_max_send_streams(INITIAL_STREAMS)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(self.max_head)
            .keep_alive_interval(self.ping)
            .keep_alive_timeout(self.ping / 2)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(io))
            .await?;
        Ok(Http2Conn::new(sender, connection, owner))
    }

    /// Opens an HTTP/1.1 connection with hyper. It runs in its own task although each request wakes that twice: parsing,
    /// sending and receiving then run for many requests in a row, while their code is in the CPU cache.
    pub(super) async fn open_http1(&self, io: HyperIo) -> hyper::Result<Http1Conn> {
        let handoff = io.handoff();
        let mut builder = http1::Builder::new();
        let (sender, connection) =
            builder.max_buf_size(self.max_head as usize).handshake(TokioIo::new(io)).await?;
        // Errors are reported to the exchange that waits for the response.
        tokio::task::spawn_local(connection.with_upgrades());
        Ok(Http1Conn { sender, handoff })
    }
}
