//! The accept loop of one listening socket on one worker.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate_listener::ConnectionLimiter;
use tidegate_store::Store;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use super::connection::{self, ClientConn, ConnectionGuard, HttpBuilders};
use crate::worker::Worker;

/// Pause after a failed accept. Without it the loop would spin while no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening socket of one worker.
pub(crate) struct Acceptor {
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) limiter: Arc<ConnectionLimiter>,
}

impl Acceptor {
    /// Accepts connections until `stop` turns true. `open` tracks them until they are closed.
    pub(crate) async fn run<S: Store + 'static>(
        self,
        worker: Rc<Worker<S>>,
        mut stop: watch::Receiver<bool>,
        open: TaskTracker,
    ) {
        let Self { listener, tls, limiter } = self;
        let http = Rc::new(HttpBuilders::new(&worker.limits));
        let serve = move |stream, peer: SocketAddr| {
            // A connection over the limit is closed immediately, so that it uses no resources.
            let permit = limiter.acquire(peer.ip());
            worker.recorder.count_connection(permit.is_some());
            let Some(permit) = permit else { return };
            let client = ClientConn { stream, peer, guard: ConnectionGuard::new(permit, open.token()) };
            connection::serve(Rc::clone(&worker), Rc::clone(&http), client, tls.clone());
        };
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => serve(stream, peer),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
        // Drain the accept queue; closing the listener would reset these connections.
        let Ok(listener) = listener.into_std() else { return };
        while let Ok((stream, peer)) = listener.accept() {
            if let Ok(stream) = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
                serve(stream, peer);
            }
        }
    }
}
