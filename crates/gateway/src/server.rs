//! The gateway: a policy in force, and a thread for each worker that serves it.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use tidegate_limiter::Limiter;
use tidegate_policy::ActivePolicy;
use tidegate_store::{Store, StoreError};
use tidegate_telemetry::{Exposition, MetricKind, MetricsReader};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::builder::GatewayBuilder;
use crate::conn::{Acceptor, ConnectionLimiter, Listener};
use crate::resource_limits::ResourceLimits;
use crate::snapshot::{Snapshot, SnapshotError};
use crate::upstream::{Connector, TlsError, health};
use crate::worker::{SharedState, Worker};

/// The reverse proxy: a limiter, the upstreams of its policy, and cores that serve requests.
#[derive(Debug)]
pub struct Gateway<S> {
    pub(crate) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(crate) shared: SharedState<S>,
    /// Held while a policy is replaced.
    pub(crate) replacing: Mutex<()>,
    pub(crate) connector: Connector,
    pub(crate) bounds: ResourceLimits,
    pub(crate) connections: Arc<ConnectionLimiter>,
}

/// Why a policy cannot be put in force.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// It cannot be served.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The store cannot count under its limits.
    #[error(transparent)]
    Limits(#[from] StoreError),
}

/// Why a gateway cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Its policy cannot be put in force.
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
        /// Where the listener listens.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system starts no thread for a worker.
    #[error("cannot start the thread of worker {worker}")]
    Thread {
        /// The number of the worker.
        worker: usize,
        /// Why.
        source: io::Error,
    },
    /// A worker cannot wait for sockets and timers.
    #[error("cannot start the runtime of worker {worker}")]
    Runtime {
        /// The number of the worker.
        worker: usize,
        /// Why.
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
    /// A gateway that asks `limiter` and serves the upstreams of its policy.
    pub fn builder(limiter: Arc<Limiter<S>>) -> GatewayBuilder<S> {
        GatewayBuilder::new(limiter)
    }

    /// What decides which requests may pass.
    pub fn limiter(&self) -> &Arc<Limiter<S>> {
        &self.shared.limiter
    }

    /// What is counted, and what is known of connections and upstreams.
    pub fn page(&self, reader: MetricsReader) -> Exposition {
        let mut page = self.shared.telemetry.exposition(reader, self.shared.limiter.clock().now());
        let open = self.connections();
        page.single(
            "tidegate_connections_open",
            MetricKind::Gauge,
            "Connections of clients that are open.",
            open,
        );
        self.snapshot.load().write(&mut page);
        page
    }

    /// Puts another policy in force, whole or not at all. Requests under way keep theirs; counters stay.
    pub fn replace(&self, active: ActivePolicy) -> Result<(), PolicyError> {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let limiter = &self.shared.limiter;
        let prepared = limiter.prepare(active)?;
        let policy = Arc::clone(prepared.policy());
        let snapshot = Snapshot::new(policy, Some(&self.snapshot.load()), self.shared.telemetry.metrics())?;
        limiter.activate(prepared);
        self.snapshot.store(Arc::new(snapshot));
        Ok(())
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }

    /// Starts a thread for each worker. They end when `stop` turns true and all requests under way have ended, or
    /// `drain` later.
    pub fn start(
        &self,
        listeners: &[Listener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<Vec<JoinHandle<()>>, StartError> {
        let cores = listeners.iter().map(|listener| listener.sockets.len()).max().unwrap_or_default();
        (0..cores).map(|worker| self.start_worker(worker, listeners, stop, drain)).collect()
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
            if let Some(socket) = listener.sockets.get(worker) {
                let address = listener.address();
                let socket =
                    socket.try_clone().map_err(|source| StartError::Listener { worker, address, source })?;
                sockets.push(CoreSocket { socket, address, tls: listener.tls.clone() });
            }
        }
        let (snapshot, shared) = (Arc::clone(&self.snapshot), self.shared.clone());
        let (connector, bounds, connections) =
            (self.connector.clone(), self.bounds, Arc::clone(&self.connections));
        let stop = stop.clone();
        let (starting, started) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("core-{worker}"));
        let handle = thread.spawn(move || {
            // Made on the thread where it stays: no part of a request changes threads.
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
                // If nobody receives it, the gateway is to stop, which `stop` says too.
                let _ = starting.send(Ok(()));
                if worker == 0 {
                    let log = shared.telemetry.log().clone();
                    tokio::task::spawn_local(health::watch(Arc::clone(&snapshot), connector.clone(), log));
                }
                let worker = Rc::new(Worker::new(snapshot, shared, connector, bounds, stop.clone()));
                run(worker, acceptors, stop, drain).await;
            });
        });
        let handle = handle.map_err(|source| StartError::Thread { worker, source })?;
        // A closed channel means the thread failed to start.
        started.recv().unwrap_or(Err(StartError::Ended { worker }))?;
        Ok(handle)
    }
}

/// A core's socket of one listener.
struct CoreSocket {
    socket: std::net::TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

/// Registers the sockets of a worker with its runtime.
fn acceptors(
    worker: usize,
    sockets: Vec<CoreSocket>,
    limiter: &Arc<ConnectionLimiter>,
) -> Result<Vec<Acceptor>, StartError> {
    let acceptor = |CoreSocket { socket, address, tls }| {
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
    // The accept loops, open connections and their tunnels.
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
    // What is still open after that is cut off.
    let _ = tokio::time::timeout(drain, open.wait()).await;
}
