//! Sends requests to servers over HTTP/1.1 or HTTP/2.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tidegate_store::Permit;
use tokio::time::MissedTickBehavior;

use super::connect::Connector;
use super::forwarded_request::ForwardedRequest;
use super::http1_fast::{IoBuffers, PlainConn};
use super::pool::ConnPool;
use super::pooled_conn::{AttemptError, Conn, Http1Conn, Http2Conn, PooledConn};
use super::server::{Protocol, Server};
use super::stream::{HyperIo, UpstreamStream};
use crate::executor::LocalExecutor;
use crate::http::response_body::UpstreamBody;
use crate::resource_limits::ResourceLimits;

/// How often a request that the server has certainly not processed is sent again, each time over another connection.
const MAX_RESENDS: u32 = 3;
/// Idle connections are swept at least this often within their idle timeout.
const SWEEPS_PER_TIMEOUT: u32 = 4;

/// The HTTP client of one worker: the fast path for HTTP/1.1, and hyper's HTTP/1.1 and HTTP/2.
#[derive(Debug)]
pub(crate) struct Transport {
    connector: Connector,
    pub(super) pool: ConnPool,
    pub(super) buffers: IoBuffers,
    pub(super) response_timeout: Duration,
    /// Quiet time after which HTTP/2 servers are pinged.
    ping: Duration,
    /// How often idle connections are swept.
    sweep: Duration,
}

/// Why there is no response.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    /// The server cannot be reached or accepts no requests. Nothing was sent; another server can be tried.
    #[error("cannot connect to the server")]
    Connect(#[source] io::Error),
    /// The `Host` is not a valid `:authority` for an HTTP/2 server.
    #[error("invalid Host header")]
    Host,
    /// The connection broke, or the response is not valid HTTP.
    #[error("invalid response")]
    Broken(#[source] hyper::Error),
    /// The end of the response is ambiguous.
    #[error("ambiguous response framing")]
    Framing,
    /// The connection closed before a response.
    #[error("connection closed before the response")]
    NoResponse,
}

impl Transport {
    pub(crate) fn new(connector: Connector, limits: &ResourceLimits) -> Rc<Self> {
        let sweep =
            limits.tick().min(limits.upstream_idle / SWEEPS_PER_TIMEOUT).max(Duration::from_millis(1));
        let max_sweeps = limits.upstream_idle.as_nanos().div_ceil(sweep.as_nanos());
        Rc::new(Self {
            connector,
            pool: ConnPool::new(u32::try_from(max_sweeps).unwrap_or(u32::MAX)),
            buffers: IoBuffers::new(),
            response_timeout: limits.response_timeout,
            ping: limits.upstream_ping,
            sweep,
        })
    }

    /// Sends a request over a pooled connection or a new one, and waits for the head of the response. The connection takes
    /// `permits` for the time of the attempt.
    pub(crate) async fn send(
        self: &Rc<Self>,
        server: &Arc<Server>,
        request: &mut ForwardedRequest,
        permits: &mut Vec<Permit>,
    ) -> Result<(Response<UpstreamBody>, PooledConn), SendError> {
        let is_plain = server.protocol == Protocol::Http1 && request.is_plain();
        let mut resends = 0;
        loop {
            let in_flight = server.begin();
            let (conn, is_new) = match self.pool.take(server, is_plain) {
                Some(conn) => (conn, false),
                // Boxed because its state would otherwise be part of every request.
                None => match Box::pin(self.open(server, is_plain)).await {
                    Ok(conn) => (conn, true),
                    Err(error) => return Err(SendError::Connect(error)),
                },
            };
            let upload = request.upload().clone();
            let mut conn = PooledConn::new(self, conn, in_flight, std::mem::take(permits), upload);
            let is_refused = match conn.exchange(request).await {
                Ok(response) => return Ok((response, conn)),
                Err(AttemptError::Failed(error)) => return Err(error),
                // The server had closed an idle connection.
                Err(AttemptError::NotSent) => false,
                Err(AttemptError::Refused) => true,
            };
            *permits = conn.give_up();
            // Only new connections count: the number of idle ones is finite.
            resends += u32::from(is_new || is_refused);
            if resends > MAX_RESENDS {
                return Err(SendError::Connect(io::ErrorKind::ConnectionRefused.into()));
            }
        }
    }

    /// Sweeps the pool periodically. Nothing else reads from idle connections, so nothing else notices that a server has
    /// closed one.
    pub(crate) async fn run(self: Rc<Self>) {
        let mut sweeps = tokio::time::interval(self.sweep);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            sweeps.tick().await;
            self.pool.sweep();
        }
    }

    /// Closes the idle connections to servers for which `is_used` is false.
    pub(crate) fn keep_only(&self, is_used: impl Fn(&Arc<Server>) -> bool) {
        self.pool.keep_only(is_used);
    }

    async fn open(&self, server: &Arc<Server>, is_plain: bool) -> io::Result<Conn> {
        let (stream, is_http2) = self.connector.connect(server).await?;
        match stream {
            UpstreamStream::Plain(stream) if is_plain && !is_http2 => {
                Ok(Conn::Plain(PlainConn::new(stream, server.count_connection())))
            }
            stream if is_http2 => self.open_http2(server, stream).await,
            stream => {
                let io = HyperIo::new(stream, server.count_connection(), false);
                open_http1(io).await.map(Conn::Http1).map_err(io::Error::other)
            }
        }
    }

    async fn open_http2(&self, server: &Arc<Server>, stream: UpstreamStream) -> io::Result<Conn> {
        let io = HyperIo::new(stream, server.count_connection(), true);
        let (sender, connection) = http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .keep_alive_interval(self.ping)
            .keep_alive_timeout(self.ping / 2)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(io))
            .await
            .map_err(io::Error::other)?;
        let http2 = Http2Conn::new(sender, connection);
        self.pool.add_http2(server, &http2);
        Ok(Conn::Http2(http2))
    }
}

/// Opens an HTTP/1.1 connection with hyper. It runs in its own task although each request wakes that twice: parsing, sending
/// and receiving then run for many requests in a row, while their code is in the CPU cache.
pub(super) async fn open_http1(io: HyperIo) -> hyper::Result<Http1Conn> {
    let handoff = io.handoff();
    let (sender, connection) = http1::Builder::new().handshake(TokioIo::new(io)).await?;
    // Errors are reported to the exchange that waits for the response.
    tokio::task::spawn_local(connection.with_upgrades());
    Ok(Http1Conn { sender, handoff })
}
