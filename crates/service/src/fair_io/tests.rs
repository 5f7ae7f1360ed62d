//! Connections that send frames without requests leave the thread to others.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_policy::{ActivePolicy, NoFiles, compile};
use tidegate_store::{Clock, ManualClock, MemoryStore};
use tidegate_telemetry::Telemetry;
use tokio::sync::watch;

use super::*;
use crate::accept::ServiceConnection;
use crate::http::HttpState;
use crate::worker::ServiceWorker;

/// The beginning of an HTTP/2 connection: the preface and an empty frame of settings.
const START: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingping";
/// So much can be read. A turn that reads everything ends there.
const FLOOD: usize = 1 << 20;
/// The most that a turn reads: the budget, and the rest of a buffer.
const MAX_TURN: usize = 64 << 10;

/// A client that always has more pings, and takes all responses.
struct PingFlood {
    read: Rc<Cell<usize>>,
}

impl AsyncRead for PingFlood {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.read.get();
        if read >= FLOOD {
            return Poll::Pending;
        }
        let pings = START.iter().chain(PING.iter().cycle().take(FLOOD)).skip(read);
        let bytes: Vec<u8> = pings.take(buffer.remaining()).copied().collect();
        buffer.put_slice(&bytes);
        self.read.set(read + bytes.len());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PingFlood {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn worker() -> Rc<ServiceWorker<MemoryStore>> {
    let plan = compile("policy.yaml", b"rate_limits: {}", &NoFiles).expect("a valid policy").plan;
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    let store = Arc::new(MemoryStore::with_cap(1 << 20));
    let limiter = Limiter::new(ActivePolicy::new(plan), store, Arc::clone(&clock)).expect("few limits");
    let (telemetry, http) = (Telemetry::metrics_only(1, clock), HttpState::new(Arc::default()));
    Rc::new(ServiceWorker::new(Arc::new(limiter), telemetry, (http, Arc::default())))
}

/// The most bytes that a connection with a flood of pings reads between two turns of another task.
async fn longest_turn<F: Future<Output = ()> + 'static>(
    serve: impl FnOnce(ServiceConnection<MemoryStore, PingFlood>) -> F,
) -> usize {
    let read = Rc::new(Cell::new(0));
    let (_stop, stop) = watch::channel(false);
    let io = PingFlood { read: Rc::clone(&read) };
    let peer = ([127, 0, 0, 1], 1).into();
    let serving = tokio::task::spawn_local(serve(ServiceConnection { io, peer, worker: worker(), stop }));
    let other = tokio::task::spawn_local(async move {
        let mut longest = 0;
        let mut before = 0;
        while before < FLOOD {
            tokio::task::yield_now().await;
            let now = read.get();
            longest = longest.max(now - before);
            before = now;
        }
        longest
    });
    let longest = other.await.expect("no panic");
    serving.abort();
    longest
}

#[test]
fn ping_flood_leaves_the_thread_to_other_connections() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let grpc = longest_turn(crate::grpc::serve).await;
        assert!(grpc <= MAX_TURN, "gRPC: {grpc} bytes in a turn");
        let http = longest_turn(crate::http::serve).await;
        assert!(http <= MAX_TURN, "HTTP: {http} bytes in a turn");
    });
}
