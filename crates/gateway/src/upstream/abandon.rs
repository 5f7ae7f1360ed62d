//! Exchanges that end before their response does: the client has left, the server was too slow, the body was bad.
//!
//! A request holds its concurrency permits until the server is done with it. Closing a connection does not stop a server
//! that is busy and does not look at it. If that released the permits, a client could start any number of
//! requests by cancelling them. So the gateway ends its side of an HTTP/1 connection, which tells an attentive server to
//! stop, and holds the permits until the server closes, having stopped or having responded to nobody. That takes at
//! most the response timeout if no response has begun, and [`GRACE`] if one has: such a server writes, and notices
//! a closed connection. For an HTTP/2 server `RST_STREAM` is the end.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_store::Permit;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::server::{InFlightGuard, UpstreamConnCount};
use super::stream::UpstreamStream;

/// How long a server that was responding may take to close.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// How much of a response is read and discarded.
const MAX_DISCARDED: usize = 1 << 20;
/// Runs of all ready tasks within which hyper has written a `RST_STREAM`: its tasks that notice, that reset the stream
/// and that write run one after the other. The next request, which needs the permit, is written after that.
const YIELDS: usize = 8;

/// A connection to a server over which HTTP is no longer spoken.
#[derive(Debug)]
pub(super) struct ServerSocket {
    pub(super) stream: UpstreamStream,
    pub(super) count: UpstreamConnCount,
}

/// What an exchange holds that its server may still be working on.
#[derive(Debug)]
pub(super) struct AbandonedExchange {
    pub(super) permits: Vec<Permit>,
    pub(super) in_flight: InFlightGuard,
    /// How long the server may take.
    pub(super) timeout: Duration,
}

impl AbandonedExchange {
    /// Releases everything once the server has closed the connection.
    pub(super) fn close(self, socket: ServerSocket) {
        let Self { permits, in_flight, timeout } = self;
        tokio::task::spawn_local(async move {
            let ServerSocket { stream, count } = socket;
            let mut stream = stream.without_replay();
            // Late or not, it is closed.
            let _ = tokio::time::timeout(timeout, until_closed(&mut stream)).await;
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

/// Ends our side, and reads until the server has ended its.
async fn until_closed(stream: &mut UpstreamStream) {
    // A connection that cannot be shut down is closed already; reading finds out.
    let _ = stream.shutdown().await;
    let (mut discarded, mut left) = ([0; 4 << 10], MAX_DISCARDED);
    while let Ok(read @ 1..) = stream.read(&mut discarded).await {
        left = left.saturating_sub(read);
        if left == 0 {
            return;
        }
    }
}

/// What an exchange and the connection that hyper has for it leave to each other: whichever ends last, if the exchange
/// is abandoned, closes the socket.
#[derive(Debug, Default)]
pub(super) struct SocketHandoff(Mutex<HandoffState>);

#[derive(Debug, Default)]
enum HandoffState {
    /// No exchange holds permits: the socket closes with the connection.
    #[default]
    Free,
    /// An exchange does.
    InUse,
    /// The connection ended first. In a box: of all states this is the rarest.
    Ended(Box<ServerSocket>),
    /// The exchange was abandoned first.
    Abandoned(AbandonedExchange),
}

impl SocketHandoff {
    /// An exchange that holds permits begins.
    pub(super) fn begin(&self) {
        self.replace(HandoffState::InUse);
    }

    /// It has ended as it should.
    pub(super) fn finish(&self) {
        self.replace(HandoffState::Free);
    }

    pub(super) fn abandon(&self, abandoned: AbandonedExchange) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut *state) {
            HandoffState::Ended(socket) => abandoned.close(*socket),
            _ => *state = HandoffState::Abandoned(abandoned),
        }
    }

    pub(super) fn connection_ended(&self, socket: ServerSocket) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut *state) {
            HandoffState::InUse => *state = HandoffState::Ended(Box::new(socket)),
            HandoffState::Abandoned(abandoned) => abandoned.close(socket),
            HandoffState::Free | HandoffState::Ended(_) => {}
        }
    }

    fn replace(&self, state: HandoffState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}
