//! Connections that send frames without requests leave the thread to others.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_limiter::Limiter;
use tidegate_policy::{ActivePolicy, NoFiles, compile};
use tidegate_store::{Clock, ManualClock, MemoryStore};
use tidegate_telemetry::Telemetry;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_local, yield_now};

use super::*;
use crate::accept::ServiceConnection;
use crate::http::HttpState;
use crate::worker::ServiceWorker;

/// The beginning of an HTTP/2 connection: the preface and an empty frame of settings.
const START: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingping";
/// The most that a turn reads: the budget, and the rest of a buffer.
const MAX_TURN: usize = 64 << 10;
/// A turn that reads everything ends there.
const FLOOD: usize = 1 << 20;

/// A client that always has more pings until it has sent `end` bytes, and takes all responses.
struct PingFlood {
    read: Rc<Cell<usize>>,
    end: usize,
}

impl AsyncRead for PingFlood {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.read.get();
        if read >= self.end {
            return Poll::Pending;
        }
        let byte =
            |at: usize| START.get(at).copied().unwrap_or_else(|| PING[(at - START.len()) % PING.len()]);
        let bytes: Vec<u8> = (read..read + buffer.remaining()).map(byte).collect();
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
    Rc::new(ServiceWorker::new(Arc::new(limiter), telemetry, http, Arc::default()))
}

/// Serves a flood of pings of `end` bytes in a task. Returns the task and the bytes that were read.
fn flood<F: Future<Output = ()> + 'static>(
    serve: impl FnOnce(ServiceConnection<MemoryStore, PingFlood>) -> F,
    end: usize,
    stop: &watch::Sender<bool>,
) -> (JoinHandle<()>, Rc<Cell<usize>>) {
    let read = Rc::new(Cell::new(0));
    let io = PingFlood { read: Rc::clone(&read), end };
    let (peer, stop) = (([127, 0, 0, 1], 1).into(), stop.subscribe());
    (spawn_local(serve(ServiceConnection { io, peer, worker: worker(), stop })), read)
}

/// The most bytes that a connection with a flood of pings reads between two turns of another task.
async fn longest_turn((serving, read): (JoinHandle<()>, Rc<Cell<usize>>)) -> usize {
    let other = spawn_local(async move {
        let (mut longest, mut before) = (0, 0);
        while before < FLOOD {
            yield_now().await;
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

/// Runs a test in a runtime like that of a worker. Time is paused.
fn run(test: impl Future<Output = ()>) {
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

#[test]
fn ping_flood_leaves_the_thread_to_other_connections() {
    run(async {
        let (stop, _) = watch::channel(false);
        let grpc = longest_turn(flood(crate::grpc::serve, FLOOD, &stop)).await;
        assert!(grpc <= MAX_TURN, "gRPC: {grpc} bytes in a turn");
        let http = longest_turn(flood(crate::http::serve, FLOOD, &stop)).await;
        assert!(http <= MAX_TURN, "HTTP: {http} bytes in a turn");
    });
}

/// The timers of a connection must not depend on what is left of the budget.
#[test]
fn ping_flood_without_end_is_closed_like_an_idle_connection() {
    run(async {
        let (stop, _) = watch::channel(false);
        let grpc = flood(crate::grpc::serve, usize::MAX, &stop);
        let http = flood(crate::http::serve, usize::MAX, &stop);
        for _ in 0..120 {
            // The clock does not advance by itself while a task is busy.
            tokio::time::advance(Duration::from_secs(1)).await;
            yield_now().await;
        }
        for (name, (serving, read)) in [("gRPC", grpc), ("HTTP", http)] {
            assert!(serving.is_finished(), "{name}: still open after {} bytes", read.get());
        }
    });
}
