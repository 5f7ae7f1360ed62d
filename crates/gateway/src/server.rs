//! The gateway: the active policy, and one thread for each worker.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use tidegate_limiter::Limiter;
use tidegate_listener::{ConnectionLimiter, Listener};
use tidegate_policy::ActivePolicy;
use tidegate_store::{Store, StoreError};
use tidegate_telemetry::{Exposition, MetricsReader};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::builder::GatewayBuilder;
use crate::conn::Acceptor;
use crate::resource_limits::ResourceLimits;
use crate::snapshot::{Snapshot, SnapshotError};
use crate::upstream::{Connector, TlsError, UpstreamGroup, health};
use crate::upstream_metrics;
use crate::worker::{SharedState, Worker};

/// The reverse proxy: a limiter, the upstreams of its policy, and workers that serve requests.
#[derive(Debug)]
pub struct Gateway<S> {
    pub(crate) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(crate) shared: SharedState<S>,
    /// Locked while a policy is replaced.
    pub(crate) replacing: Mutex<()>,
    pub(crate) connector: Connector,
    pub(crate) limits: ResourceLimits,
    pub(crate) connections: Arc<ConnectionLimiter>,
}

/// Why a policy cannot be activated.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// The gateway cannot serve the policy.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The store cannot count the limits of the policy.
    #[error(transparent)]
    Limits(#[from] StoreError),
}

/// Why a gateway cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The policy cannot be activated.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// TLS towards upstreams cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A worker cannot use its socket of a listener.
    #[error("worker {worker} cannot listen on {address}")]
    Listener {
        /// The number of the worker.
        worker: usize,
        /// The address of the listener.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The system cannot start the thread of a worker.
    #[error("cannot start the thread of worker {worker}")]
    Thread {
        /// The number of the worker.
        worker: usize,
        /// The cause.
        source: io::Error,
    },
    /// The async runtime of a worker cannot start.
    #[error("cannot start the runtime of worker {worker}")]
    Runtime {
        /// The number of the worker.
        worker: usize,
        /// The cause.
        source: io::Error,
    },
    /// The thread of a worker ended before it had started.
    #[error("the thread of worker {worker} failed to start")]
    Ended {
        /// The number of the worker.
        worker: usize,
    },
}

impl<S: Store + 'static> Gateway<S> {
    /// Builds a gateway that enforces the policy of `limiter` and forwards to the upstreams of that policy.
    pub fn builder(limiter: Arc<Limiter<S>>) -> GatewayBuilder<S> {
        GatewayBuilder::new(limiter)
    }

    /// The limiter that admits or rejects requests.
    pub fn limiter(&self) -> &Arc<Limiter<S>> {
        &self.shared.limiter
    }

    /// All metrics: those of the requests, and the state of connections and upstreams.
    pub fn metrics(&self, reader: MetricsReader) -> Exposition {
        let mut page = self.shared.telemetry.exposition(reader, self.shared.limiter.clock().now());
        let open = self.connections();
        self.shared.telemetry.metrics().write_open_connections(&mut page, open);
        self.snapshot.load().write_metrics(&mut page);
        upstream_metrics::write(&mut page, &self.upstream_status(), &self.route_status());
        page
    }

    /// Activates another policy. An error leaves the current policy active. Requests in progress keep their policy, and
    /// counters stay.
    pub fn replace(&self, active: ActivePolicy) -> Result<(), PolicyError> {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let limiter = &self.shared.limiter;
        let prepared = limiter.prepare(active)?;
        let policy = Arc::clone(prepared.policy());
        let snapshot = Snapshot::new(policy, Some(&self.snapshot.load()), &self.shared, &self.limits)?;
        limiter.activate(prepared);
        snapshot.upstreams().iter().for_each(UpstreamGroup::limit_ejections);
        self.snapshot.store(Arc::new(snapshot));
        Ok(())
    }

    /// The number of open client connections.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }

    /// Starts a thread for each worker. After `stop` turns true, a thread ends when its requests in progress have ended,
    /// at the latest after `drain`.
    pub fn start(
        &self,
        listeners: &[Listener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<Vec<JoinHandle<()>>, StartError> {
        let workers = listeners.iter().map(|listener| listener.sockets().len()).max().unwrap_or_default();
        (0..workers).map(|worker| self.start_worker(worker, listeners, stop, drain)).collect()
    }

    fn start_worker(
        &self,
        worker: usize,
        listeners: &[Listener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<JoinHandle<()>, StartError> {
        let mut sockets = Vec::new();
        for listener in listeners {
            if let Some(socket) = listener.sockets().get(worker) {
                let address = listener.address();
                let socket =
                    socket.try_clone().map_err(|source| StartError::Listener { worker, address, source })?;
                sockets.push(WorkerSocket { socket, address, tls: listener.tls().cloned() });
            }
        }
        let (snapshot, shared) = (Arc::clone(&self.snapshot), self.shared.clone());
        let (connector, limits, connections) =
            (self.connector.clone(), self.limits, Arc::clone(&self.connections));
        let stop = stop.clone();
        let (starting, started) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("worker-{worker}"));
        let handle = thread.spawn(move || {
            // The runtime is built on its own thread: no part of a request changes threads.
            let runtime =
                match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                    Ok(runtime) => runtime,
                    Err(source) => return drop(starting.send(Err(StartError::Runtime { worker, source }))),
                };
            runtime.block_on(async {
                let acceptors = match acceptors(worker, sockets, &connections) {
                    Ok(acceptors) => acceptors,
                    Err(error) => return drop(starting.send(Err(error))),
                };
                // A closed channel means that the start failed elsewhere; `stop` ends this worker then.
                let _ = starting.send(Ok(()));
                if worker == 0 {
                    let log = shared.telemetry.log().clone();
                    tokio::task::spawn_local(health::watch(Arc::clone(&snapshot), connector.clone(), log));
                }
                let worker = Rc::new(Worker::new(snapshot, shared, connector, limits, stop.clone()));
                run(worker, acceptors, stop, drain).await;
            });
        });
        let handle = handle.map_err(|source| StartError::Thread { worker, source })?;
        // A closed channel means the thread failed to start.
        started.recv().unwrap_or(Err(StartError::Ended { worker }))?;
        Ok(handle)
    }
}

/// The socket that a worker has of one listener.
struct WorkerSocket {
    socket: std::net::TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

/// Registers the sockets of a worker with its runtime.
fn acceptors(
    worker: usize,
    sockets: Vec<WorkerSocket>,
    limiter: &Arc<ConnectionLimiter>,
) -> Result<Vec<Acceptor>, StartError> {
    let acceptor = |WorkerSocket { socket, address, tls }| {
        let listener = TcpListener::from_std(socket);
        let listener = listener.map_err(|source| StartError::Listener { worker, address, source })?;
        Ok(Acceptor { listener, tls, limiter: Arc::clone(limiter) })
    };
    sockets.into_iter().map(acceptor).collect()
}

/// Serves with one worker until `stop` turns true, then drains its connections.
async fn run<S: Store + 'static>(
    worker: Rc<Worker<S>>,
    acceptors: Vec<Acceptor>,
    mut stop: watch::Receiver<bool>,
    drain: Duration,
) {
    // Tracks the accept loops, open connections and upgraded connections.
    let open = TaskTracker::new();
    tokio::task::spawn_local(Rc::clone(&worker.watchdog).run(stop.clone()));
    tokio::task::spawn_local(Rc::clone(&worker.transport).run());
    for acceptor in acceptors {
        let accepting = acceptor.run(Rc::clone(&worker), stop.clone(), open.clone());
        tokio::task::spawn_local(open.track_future(accepting));
    }
    // A closed channel means the same as `true`.
    let _ = stop.wait_for(|stop| *stop).await;
    worker.begin_stopping();
    open.close();
    // Connections that are still open after `drain` are aborted.
    let _ = tokio::time::timeout(drain, open.wait()).await;
}
