//! Sends requests to servers, whatever protocol a server speaks.

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

/// How often a request is sent again that a server has certainly not processed. Each attempt has another connection.
const MAX_RESENDS: u32 = 3;
/// Idle connections are swept at least this often within their idle timeout.
const SWEEPS_PER_TIMEOUT: u32 = 4;

/// The way of one worker to all servers: the fast path for HTTP/1.1, and hyper's HTTP/1.1 and HTTP/2.
#[derive(Debug)]
pub(crate) struct Transport {
    connector: Connector,
    pub(super) pool: ConnPool,
    pub(super) buffers: IoBuffers,
    pub(super) response_timeout: Duration,
    /// After how long without a frame HTTP/2 servers are pinged.
    ping: Duration,
    /// How often idle connections are swept.
    sweep: Duration,
}

/// Why a server gave no response.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    /// It cannot be reached or takes no requests: nothing was sent, and the request can be sent to another one.
    #[error("cannot connect to the server")]
    Connect(#[source] io::Error),
    /// The request's `Host` cannot be said to an HTTP/2 server.
    #[error("the Host header is not a valid authority")]
    Host,
    /// The connection broke, or what came is not HTTP.
    #[error("invalid response")]
    Broken(#[source] hyper::Error),
    /// Where the response ends can be read in two ways.
    #[error("ambiguous response framing")]
    Framing,
    /// The connection broke before anything came.
    #[error("connection closed before the response")]
    Unanswered,
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

    /// Sends a request over a kept connection or a new one, and waits for the head of the response. The connection owns
    /// `permits` as soon as something is sent.
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
                // In a box: its state would otherwise be part of every request.
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
                // The server had closed an idle connection: another one is tried.
                Err(AttemptError::NotSent) => false,
                Err(AttemptError::Refused) => true,
            };
            *permits = conn.give_up();
            // Idle connections are used up in the end, so failing over them needs no limit.
            resends += u32::from(is_new || is_refused);
            if resends > MAX_RESENDS {
                return Err(SendError::Connect(io::ErrorKind::ConnectionRefused.into()));
            }
        }
    }

    /// Closes idle connections that have timed out or that their servers have closed, for ever. Nothing else reads
    /// from them, and a server may drop them without notice.
    pub(crate) async fn run(self: Rc<Self>) {
        let mut sweeps = tokio::time::interval(self.sweep);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            sweeps.tick().await;
            self.pool.sweep();
        }
    }

    /// Closes the idle connections to servers that no upstream has any more.
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

/// Has hyper speak HTTP/1.1. The connection is a task of its own, though each request wakes it twice: parsing, sending
/// and receiving are then done for many requests in a row, while their code is in the processor's cache.
pub(super) async fn open_http1(io: HyperIo) -> hyper::Result<Http1Conn> {
    let handoff = io.handoff();
    let (sender, connection) = http1::Builder::new().handshake(TokioIo::new(io)).await?;
    // An error is reported to the exchange that waits for a response.
    tokio::task::spawn_local(connection.with_upgrades());
    Ok(Http1Conn { sender, handoff })
}
