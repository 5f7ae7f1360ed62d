//! Accepts connections of one listening socket on one worker.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_listener::{ConnectionLimiter, WorkerSocket};
use tidegate_store::Store;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::connection::{self, ClientConn, ConnectionGuard, HttpBuilders};
use crate::worker::Worker;

/// Accepts connections until `stop` turns true. `open` tracks them until they are closed.
pub(crate) async fn accept<S: Store + 'static>(
    socket: WorkerSocket,
    limiter: Arc<ConnectionLimiter>,
    worker: Rc<Worker<S>>,
    stop: watch::Receiver<bool>,
    open: TaskTracker,
) {
    let (http, tls) = (Rc::new(HttpBuilders::new(&worker.limits)), socket.tls().cloned());
    let serve = |stream, peer: SocketAddr| {
        // A connection over the limit is closed immediately, so that it uses no resources.
        let permit = limiter.acquire(peer.ip());
        worker.recorder.count_connection(permit.is_some());
        let Some(permit) = permit else { return };
        let client = ClientConn { stream, peer, guard: ConnectionGuard::new(permit, open.token()) };
        connection::serve(Rc::clone(&worker), Rc::clone(&http), client, tls.clone());
    };
    socket.accept(stop, serve).await;
}
