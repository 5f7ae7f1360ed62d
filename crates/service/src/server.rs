//! Starts one worker thread for each core.

use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_core::TimeSpan;
use tidegate_limiter::Limiter;
use tidegate_listener::{ConnectionLimiter, Listener, WorkerSocket, WorkerStartError, start_workers};
use tidegate_policy::EnvoyLimits;
use tidegate_store::{Store, StoreError};
use tidegate_telemetry::{Protocol, Telemetry};
use tokio::sync::watch;
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
    ) -> Result<Vec<JoinHandle<()>>, WorkerStartError> {
        let protocols: Vec<_> = listeners.iter().map(|listener| listener.protocol).collect();
        let listeners: Vec<_> = listeners.iter().map(|listener| &listener.listener).collect();
        start_workers("service", &listeners, |_| {
            let (limiter, telemetry) = (Arc::clone(&self.limiter), self.telemetry.clone());
            let (connections, envoy) = (Arc::clone(&self.connections), Arc::clone(&self.envoy));
            let (reservations, tokens) = (Arc::clone(&self.reservations), Arc::clone(&self.tokens));
            let (protocols, stop) = (protocols.clone(), stop.clone());
            move |sockets| async move {
                let http = HttpState::new(reservations);
                let worker = ServiceWorker::new(limiter, telemetry, http, envoy).requiring(tokens);
                let acceptor = |socket: WorkerSocket| {
                    let (protocol, limiter) = (*protocols.get(socket.listener)?, Arc::clone(&connections));
                    Some(ServiceAcceptor { protocol, socket, limiter })
                };
                let acceptors = sockets.into_iter().filter_map(acceptor).collect();
                run(Rc::new(worker), acceptors, stop, drain).await;
            }
        })
    }
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
    worker.limiter.waits().end_at(worker.limiter.clock().now() + TimeSpan::from(drain));
    open.close();
    // Connections that are still open after `drain` are aborted.
    let _ = tokio::time::timeout(drain, open.wait()).await;
}
