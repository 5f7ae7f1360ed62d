//! Exchanges that end before their response: the client disconnected, the server timed out, or the request body was bad.
//!
//! A request keeps its concurrency permits until the server is done with it. Closing a connection does not stop a server
//! that is busy. If it released the permits, a client could start any number of requests by cancelling them. So the gateway
//! shuts down its side of an HTTP/1 connection, which signals the server to stop, and keeps the permits until the server
//! closes its side. It waits for at most the response timeout if no response has started, and [`GRACE`] if one has: a server
//! that writes notices the closed connection. For an HTTP/2 server, `RST_STREAM` ends the exchange.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::permits::ExchangePermits;
use super::server::{InFlightGuard, UpstreamConnCount};
use super::stream::UpstreamStream;

/// How long a server that was responding may take to close.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// How much of a response is read and discarded.
const MAX_DISCARDED: usize = 1 << 20;
/// Yields after which hyper has written a `RST_STREAM`: its tasks notice the drop, reset the stream and write one after the
/// other. The next request, which needs the permit, is written after that.
const YIELDS: usize = 8;

/// A connection to a server that carries no further requests.
#[derive(Debug)]
pub(super) struct ServerSocket {
    pub(super) stream: UpstreamStream,
    pub(super) count: UpstreamConnCount,
}

/// The resources of an exchange that its server may still be processing.
#[derive(Debug)]
pub(super) struct AbandonedExchange {
    pub(super) permits: ExchangePermits,
    pub(super) in_flight: InFlightGuard,
    /// How long to wait for the server.
    pub(super) timeout: Duration,
}

impl AbandonedExchange {
    /// Releases everything once the server has closed the connection.
    pub(super) fn close(self, socket: ServerSocket) {
        let Self { permits, in_flight, timeout } = self;
        tokio::task::spawn_local(async move {
            let ServerSocket { stream, count } = socket;
            let mut stream = stream.without_replay();
            // After a timeout the connection is closed all the same.
            let _ = tokio::time::timeout(timeout, wait_until_closed(&mut stream)).await;
            drop((stream, count));
            drop((permits, in_flight));
        });
    }

    /// Releases everything once the stream of an HTTP/2 connection is reset.
    pub(super) fn release_after_reset(self) {
        let Self { permits, in_flight, .. } = self;
        tokio::task::spawn_local(async move {
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
            drop((permits, in_flight));
        });
    }
}

/// Shuts down our side, and reads until the server closes its side.
async fn wait_until_closed(stream: &mut UpstreamStream) {
    // If the shutdown fails, the connection is closed already, and the read returns.
    let _ = stream.shutdown().await;
    let (mut discarded, mut left) = ([0; 4 << 10], MAX_DISCARDED);
    while let Ok(read @ 1..) = stream.read(&mut discarded).await {
        left = left.saturating_sub(read);
        if left == 0 {
            return;
        }
    }
}

/// Passes a socket from hyper's connection task to an abandoned exchange, or the exchange to the task: whichever ends last
/// closes the socket.
#[derive(Debug, Default)]
pub(super) struct SocketHandoff {
    state: Mutex<HandoffState>,
    /// Bytes were read since [`Self::expect_response`].
    has_response_bytes: AtomicBool,
    /// Reads are small, because many such responses may wait for one client.
    has_small_reads: AtomicBool,
}

#[derive(Debug, Default)]
enum HandoffState {
    /// No exchange has permits: the socket closes with the connection.
    #[default]
    Free,
    /// An exchange has permits.
    InUse,
    /// The connection ended first. Boxed because this state is rare.
    Ended(Box<ServerSocket>),
    /// The exchange was abandoned first.
    Abandoned(AbandonedExchange),
}

impl SocketHandoff {
    /// A request is about to be sent: what is read from now on belongs to its response.
    pub(super) fn expect_response(&self, is_multiplexed: bool) {
        self.has_response_bytes.store(false, Ordering::Relaxed);
        self.has_small_reads.store(is_multiplexed, Ordering::Relaxed);
    }

    pub(super) fn has_small_reads(&self) -> bool {
        self.has_small_reads.load(Ordering::Relaxed)
    }

    /// Bytes were read. Returns whether they are the first of a response.
    pub(super) fn record_read(&self) -> bool {
        let is_first = !self.has_response_bytes();
        if is_first {
            self.has_response_bytes.store(true, Ordering::Relaxed);
        }
        is_first
    }

    /// Whether any byte of a response was read.
    pub(super) fn has_response_bytes(&self) -> bool {
        self.has_response_bytes.load(Ordering::Relaxed)
    }

    /// An exchange with permits starts.
    pub(super) fn begin(&self) {
        self.replace(HandoffState::InUse);
    }

    /// The exchange has completed.
    pub(super) fn finish(&self) {
        self.replace(HandoffState::Free);
    }

    pub(super) fn abandon(&self, abandoned: AbandonedExchange) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut *state) {
            HandoffState::Ended(socket) => abandoned.close(*socket),
            _ => *state = HandoffState::Abandoned(abandoned),
        }
    }

    pub(super) fn connection_ended(&self, socket: ServerSocket) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut *state) {
            HandoffState::InUse => *state = HandoffState::Ended(Box::new(socket)),
            HandoffState::Abandoned(abandoned) => abandoned.close(socket),
            HandoffState::Free | HandoffState::Ended(_) => {}
        }
    }

    fn replace(&self, state: HandoffState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}
