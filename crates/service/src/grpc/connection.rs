//! A connection: accepts calls, pings an idle peer, and closes gracefully.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::Request;
use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::unconstrained;
use tokio::time::{MissedTickBehavior, interval};

use super::call::{self, CallContext};
use super::frame::{MAX_MESSAGE, PartialBytes};
use crate::accept::ServiceConnection;
use crate::fair_io::FairIo;

/// The timeout of the first frames of a connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer without calls is pinged after this time and must answer within it.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// The largest head of a call in bytes. Envoy passes headers of its clients' traces on, which have up to 60 KiB.
const MAX_HEAD: u32 = 80 << 10;
/// The largest number of calls at once. It also bounds the responses that a client does not read.
const MAX_STREAMS: u32 = 128;
/// The bytes of bodies that a client may send before their calls are answered.
const CONNECTION_WINDOW: u32 = 1 << 20;

/// The bytes of a reply in several parts that are kept for a client that does not read. The reply to a unary call is kept whole.
const SEND_BUFFER: usize = 16 << 10;

/// A call whose head has arrived.
type IncomingCall = (Request<RecvStream>, SendResponse<Bytes>);

/// Serves a connection until it ends or the service stops.
pub(crate) async fn serve<S, IO>(connection: ServiceConnection<S, IO>)
where
    S: Store + 'static,
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let ServiceConnection { io, peer, worker, mut stop } = connection;
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        // A whole message and its prefix, so that no call waits for its window to be opened.
        .initial_window_size(u32::try_from(2 * MAX_MESSAGE).unwrap_or(u32::MAX))
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(64)
        .max_local_error_reset_streams(Some(256));
    let Ok(Ok(mut h2)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, builder.handshake(FairIo::new(io))).await
    else {
        return;
    };
    let (streaming, reflecting, partial) = (Cell::new(0), Cell::new(0), PartialBytes::default());
    let peer = peer.ip().to_canonical();
    let context = CallContext { worker, peer, stop: stop.clone(), streaming, reflecting, partial };
    let context = Rc::new(context);
    let mut keepalive = Keepalive { pings: h2.ping_pong(), is_active: true, is_unanswered: false };
    // The first tick is immediate and finds the connection active.
    let mut ticks = interval(KEEPALIVE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopping = pin!(async move {
        // A closed channel means the same as `true`.
        let _ = stop.wait_for(|stop| *stop).await;
    });
    let (mut is_stopping, mut calls) = (false, Vec::new());
    loop {
        tokio::select! {
            biased;
            () = &mut stopping, if !is_stopping => {
                is_stopping = true;
                h2.graceful_shutdown();
            }
            is_open = poll_fn(|context| poll_accept_all(&mut h2, context, &mut calls)) => {
                if !is_open {
                    return;
                }
                keepalive.is_active = true;
                for (request, respond) in calls.drain(..) {
                    start(&context, request, respond).await;
                }
            }
            // A client that always sends would use up the budget of the task before each tick.
            _ = unconstrained(ticks.tick()) => {
                if keepalive.tick().is_err() {
                    return;
                }
            }
        }
    }
}

/// Accepts all calls that have arrived, so that their responses are written together. Ready with whether the connection is
/// open.
fn poll_accept_all<IO: AsyncRead + AsyncWrite + Unpin>(
    h2: &mut Connection<IO, Bytes>,
    context: &mut Context<'_>,
    calls: &mut Vec<IncomingCall>,
) -> Poll<bool> {
    loop {
        match h2.poll_accept(context) {
            Poll::Ready(Some(Ok(call))) => calls.push(call),
            Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(false),
            Poll::Pending if calls.is_empty() => return Poll::Pending,
            Poll::Pending => return Poll::Ready(true),
        }
    }
}

/// Serves a call. A call that can be answered at once needs no task.
async fn start<S: Store + 'static>(
    context: &Rc<CallContext<S>>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let mut serving = Box::pin(call::serve(Rc::clone(context), request, respond));
    let is_done = poll_fn(|context| Poll::Ready(serving.as_mut().poll(context).is_ready())).await;
    if !is_done {
        tokio::task::spawn_local(serving);
    }
}

/// Pings a peer that sends no calls, so that connections to vanished peers are closed.
struct Keepalive {
    pings: Option<PingPong>,
    /// Whether calls have arrived since the last tick.
    is_active: bool,
    is_unanswered: bool,
}

/// The peer does not answer pings.
struct PeerLost;

impl Keepalive {
    fn tick(&mut self) -> Result<(), PeerLost> {
        let Some(pings) = &mut self.pings else { return Ok(()) };
        if self.is_unanswered {
            let mut context = Context::from_waker(std::task::Waker::noop());
            match pings.poll_pong(&mut context) {
                Poll::Ready(Ok(_)) => self.is_unanswered = false,
                Poll::Ready(Err(_)) | Poll::Pending => return Err(PeerLost),
            }
        }
        if !std::mem::replace(&mut self.is_active, false) {
            pings.send_ping(Ping::opaque()).map_err(|_| PeerLost)?;
            self.is_unanswered = true;
        }
        Ok(())
    }
}
