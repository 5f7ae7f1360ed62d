//! Accepts connections of one listening socket on one worker.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate_listener::{ConnectionLimiter, ConnectionPermit, WorkerSocket};
use tidegate_store::Store;
use tidegate_telemetry::Protocol;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::worker::ServiceWorker;
use crate::{grpc, http, resp};

/// The timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A listening socket of one worker.
pub(crate) struct ServiceAcceptor {
    pub(crate) protocol: Protocol,
    pub(crate) socket: WorkerSocket,
    pub(crate) limiter: Arc<ConnectionLimiter>,
}

/// A connection that a protocol serves.
pub(crate) struct ServiceConnection<S, IO> {
    pub(crate) io: IO,
    pub(crate) peer: SocketAddr,
    pub(crate) worker: Rc<ServiceWorker<S>>,
    /// Turns true when the service stops: requests in progress are answered, then the connection is closed.
    pub(crate) stop: watch::Receiver<bool>,
}

impl ServiceAcceptor {
    /// Accepts connections until `stop` turns true. `open` tracks them until they are closed.
    pub(crate) async fn run<S: Store + 'static>(
        self,
        worker: Rc<ServiceWorker<S>>,
        stop: watch::Receiver<bool>,
        open: TaskTracker,
    ) {
        let Self { protocol, socket, limiter } = self;
        let (tls, stopping) = (socket.tls().cloned(), stop.clone());
        let serve = |io, peer: SocketAddr| {
            // A connection over the limit is closed immediately, so that it uses no resources.
            let permit = limiter.acquire(peer.ip());
            worker.recorder(protocol).count_connection(permit.is_some());
            let Some(permit) = permit else { return };
            let counted = CountedConnection { worker: Rc::clone(&worker), protocol };
            let connection =
                ServiceConnection { io, peer, worker: Rc::clone(&worker), stop: stopping.clone() };
            let serving = serve(protocol, tls.clone(), connection, (permit, counted));
            tokio::task::spawn_local(open.track_future(serving));
        };
        socket.accept(stop, serve).await;
    }
}

/// An open connection in the metrics. Drop counts it as closed, however it ends.
struct CountedConnection<S: Store + 'static> {
    worker: Rc<ServiceWorker<S>>,
    protocol: Protocol,
}

impl<S: Store + 'static> Drop for CountedConnection<S> {
    fn drop(&mut self) {
        self.worker.recorder(self.protocol).count_closed_connection();
    }
}

async fn serve<S: Store + 'static>(
    protocol: Protocol,
    tls: Option<TlsAcceptor>,
    connection: ServiceConnection<S, TcpStream>,
    _open: (ConnectionPermit, CountedConnection<S>),
) {
    // Answers are small: waiting to fill a packet would delay them.
    let _ = connection.io.set_nodelay(true);
    let Some(tls) = tls else { return dispatch(protocol, connection).await };
    let ServiceConnection { io, peer, worker, stop } = connection;
    // A client that fails the handshake has no protocol in which it could be told.
    if let Ok(Ok(io)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(io)).await {
        Box::pin(dispatch(protocol, ServiceConnection { io, peer, worker, stop })).await;
    }
}

async fn dispatch<S, IO>(protocol: Protocol, connection: ServiceConnection<S, IO>)
where
    S: Store + 'static,
    IO: AsyncRead + AsyncWrite + Unpin + 'static,
{
    match protocol {
        Protocol::Http | Protocol::Gateway => Box::pin(http::serve(connection)).await,
        Protocol::Grpc => Box::pin(grpc::serve(connection)).await,
        Protocol::Resp => Box::pin(resp::serve(connection)).await,
    }
}
