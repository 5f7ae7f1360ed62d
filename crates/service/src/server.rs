//! Starts one worker thread for each core.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;
use tidegate_limiter::Limiter;
use tidegate_listener::{ConnectionLimiter, Listener};
use tidegate_policy::EnvoyLimits;
use tidegate_store::{Store, StoreError};
use tidegate_telemetry::{Protocol, Telemetry};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::accept::ServiceAcceptor;
use crate::auth::TokenRegister;
use crate::grpc::{self, EnvoyHandle};
use crate::http::HttpState;
use crate::reservations::ReservationTable;
use crate::worker::ServiceWorker;

/// The default for the number of open connections.
const MAX_CONNECTIONS: usize = 10_000;

/// The decision service.
#[derive(Debug)]
pub struct Service<S> {
    limiter: Arc<Limiter<S>>,
    telemetry: Telemetry,
    connections: Arc<ConnectionLimiter>,
    reservations: Arc<ReservationTable>,
    envoy: Arc<EnvoyHandle>,
    tokens: Arc<TokenRegister>,
}

/// A listener and the protocol that it serves.
#[derive(Clone, Debug)]
pub struct ServiceListener {
    /// The protocol.
    pub protocol: Protocol,
    /// The listener.
    pub listener: Listener,
}

/// Why the decision service cannot start.
#[derive(Debug, Error)]
pub enum ServiceStartError {
    /// A worker cannot use its socket of a listener.
    #[error("worker {worker} of the decision service cannot listen on {address}")]
    Listener {
        /// The number of the worker.
        worker: usize,
        /// The address of the listener.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The system cannot start the thread or the async runtime of a worker.
    #[error("cannot start worker {worker} of the decision service")]
    Thread {
        /// The number of the worker.
        worker: usize,
        /// The cause.
        source: io::Error,
    },
}

impl<S: Store + 'static> Service<S> {
    /// A service that answers with the decisions of `limiter`.
    pub fn new(limiter: Arc<Limiter<S>>, telemetry: Telemetry) -> Self {
        let connections = ConnectionLimiter::new(MAX_CONNECTIONS, MAX_CONNECTIONS);
        let tokens = Arc::<TokenRegister>::default();
        let register = Arc::clone(&tokens);
        limiter.on_activation(Box::new(move |policy| register.apply(&policy.matcher.plan().service)));
        let (reservations, envoy) = (Arc::default(), Arc::default());
        Self { limiter, telemetry, connections, reservations, envoy, tokens }
    }

    /// Replaces the descriptors of Envoy's rate limit service. Counters stay. If the store cannot count the limits, nothing
    /// changes.
    pub fn apply_envoy_limits(&self, limits: EnvoyLimits) -> Result<(), StoreError> {
        self.envoy.activate(limits, self.limiter.store(), self.limiter.clock().now())
    }

    /// Sets the maximum number of open connections. One address may use all of them: most clients are proxies.
    #[must_use]
    pub fn max_connections(self, max: usize) -> Self {
        Self { connections: ConnectionLimiter::new(max, max), ..self }
    }

    /// Decides an encoded `RateLimitRequest` without a connection, as a call over gRPC would; `None` if the call fails. For tests of
    /// the decoder with arbitrary bytes.
    #[doc(hidden)]
    pub async fn decide_rls(&self, message: &[u8]) -> Option<Vec<u8>> {
        let (limiter, telemetry) = (Arc::clone(&self.limiter), self.telemetry.clone());
        let http = HttpState::new(Arc::clone(&self.reservations));
        let worker = ServiceWorker::new(limiter, telemetry, http, Arc::clone(&self.envoy));
        grpc::decide_encoded(&worker, message).await
    }

    /// Starts a thread for each worker. After `stop` turns true, a thread ends when its requests in progress have ended,
    /// at the latest after `drain`.
    pub fn start(
        &self,
        listeners: &[ServiceListener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<Vec<JoinHandle<()>>, ServiceStartError> {
        let sockets = |listener: &ServiceListener| listener.listener.sockets().len();
        let workers = listeners.iter().map(sockets).max().unwrap_or_default();
        (0..workers).map(|worker| self.start_worker(worker, listeners, stop, drain)).collect()
    }

    fn start_worker(
        &self,
        worker: usize,
        listeners: &[ServiceListener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<JoinHandle<()>, ServiceStartError> {
        let mut sockets = Vec::new();
        for ServiceListener { protocol, listener } in listeners {
            if let Some(socket) = listener.sockets().get(worker) {
                let address = listener.address();
                let socket = socket.try_clone();
                let socket =
                    socket.map_err(|source| ServiceStartError::Listener { worker, address, source })?;
                sockets.push(ServiceSocket {
                    protocol: *protocol,
                    socket,
                    address,
                    tls: listener.tls().cloned(),
                });
            }
        }
        let (limiter, telemetry) = (Arc::clone(&self.limiter), self.telemetry.clone());
        let (connections, envoy, stop) =
            (Arc::clone(&self.connections), Arc::clone(&self.envoy), stop.clone());
        let (reservations, tokens) = (Arc::clone(&self.reservations), Arc::clone(&self.tokens));
        let (starting, started) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("service-{worker}"));
        let handle = thread.spawn(move || {
            // The runtime is built on its own thread: no part of a request changes threads.
            let runtime =
                match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                    Ok(runtime) => runtime,
                    Err(source) => {
                        return drop(starting.send(Err(ServiceStartError::Thread { worker, source })));
                    }
                };
            runtime.block_on(async {
                let acceptors = match acceptors(worker, sockets, &connections) {
                    Ok(acceptors) => acceptors,
                    Err(error) => return drop(starting.send(Err(error))),
                };
                // A closed channel means that the start failed elsewhere; `stop` ends this worker then.
                let _ = starting.send(Ok(()));
                let http = HttpState::new(reservations);
                let worker = ServiceWorker::new(limiter, telemetry, http, envoy).requiring(tokens);
                run(Rc::new(worker), acceptors, stop, drain).await;
            });
        });
        let handle = handle.map_err(|source| ServiceStartError::Thread { worker, source })?;
        // A closed channel means the thread failed to start.
        let failed = || Err(ServiceStartError::Thread { worker, source: io::ErrorKind::Other.into() });
        started.recv().unwrap_or_else(|_| failed())?;
        Ok(handle)
    }
}

/// The socket that a worker has of one listener.
struct ServiceSocket {
    protocol: Protocol,
    socket: std::net::TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

/// Registers the sockets of a worker with its runtime.
fn acceptors(
    worker: usize,
    sockets: Vec<ServiceSocket>,
    limiter: &Arc<ConnectionLimiter>,
) -> Result<Vec<ServiceAcceptor>, ServiceStartError> {
    let acceptor = |ServiceSocket { protocol, socket, address, tls }| {
        let listener = TcpListener::from_std(socket);
        let listener = listener.map_err(|source| ServiceStartError::Listener { worker, address, source })?;
        Ok(ServiceAcceptor { protocol, listener, tls, limiter: Arc::clone(limiter) })
    };
    sockets.into_iter().map(acceptor).collect()
}

/// Serves with one worker until `stop` turns true, then drains its connections.
async fn run<S: Store + 'static>(
    worker: Rc<ServiceWorker<S>>,
    acceptors: Vec<ServiceAcceptor>,
    mut stop: watch::Receiver<bool>,
    drain: Duration,
) {
    let open = TaskTracker::new();
    for acceptor in acceptors {
        let accepting = acceptor.run(Rc::clone(&worker), stop.clone(), open.clone());
        tokio::task::spawn_local(open.track_future(accepting));
    }
    // A closed channel means the same as `true`.
    let _ = stop.wait_for(|stop| *stop).await;
    open.close();
    // Connections that are still open after `drain` are aborted.
    let _ = tokio::time::timeout(drain, open.wait()).await;
}
