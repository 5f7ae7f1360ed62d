//! The gateway: a policy in force, and a thread for each core that serves it.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use tidegate_limiter::Limiter;
use tidegate_policy::Active;
use tidegate_store::{Store, StoreError};
use tidegate_telemetry::{Kind, Page, Reader};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::builder::GatewayBuilder;
use crate::conn::{Acceptor, ConnectionLimiter, Listener};
use crate::resource_limits::ResourceLimits;
use crate::snapshot::{Live, LiveError};
use crate::upstream::{Connector, TlsError, health};
use crate::worker::{Core, Shared};

/// The reverse proxy: a limiter, the upstreams of its policy, and cores that serve requests.
#[derive(Debug)]
pub struct Gateway<S> {
    pub(crate) live: Arc<ArcSwap<Live>>,
    pub(crate) shared: Shared<S>,
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
    Live(#[from] LiveError),
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
    /// A core cannot use its socket of a listener.
    #[error("core {core} cannot listen on {address}")]
    Listener {
        /// The number of the core.
        core: usize,
        /// Where the listener listens.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system starts no thread for a core.
    #[error("cannot start the thread of core {core}")]
    Thread {
        /// The number of the core.
        core: usize,
        /// Why.
        source: io::Error,
    },
    /// A core cannot wait for sockets and timers.
    #[error("cannot start the runtime of core {core}")]
    Runtime {
        /// The number of the core.
        core: usize,
        /// Why.
        source: io::Error,
    },
    /// The thread of a core ended before it had started.
    #[error("the thread of core {core} failed to start")]
    Ended {
        /// The number of the core.
        core: usize,
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
    pub fn page(&self, reader: Reader) -> Page {
        let mut page = self.shared.telemetry.page(reader, self.shared.limiter.clock().now());
        let open = self.connections();
        page.single("tidegate_connections_open", Kind::Gauge, "Connections of clients that are open.", open);
        self.live.load().write(&mut page);
        page
    }

    /// Puts another policy in force, whole or not at all. Requests under way keep theirs; counters stay.
    pub fn replace(&self, active: Active) -> Result<(), PolicyError> {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let limiter = &self.shared.limiter;
        let prepared = limiter.prepare(active)?;
        let policy = Arc::clone(prepared.policy());
        let live = Live::new(policy, Some(&self.live.load()), self.shared.telemetry.metrics())?;
        limiter.activate(prepared);
        self.live.store(Arc::new(live));
        Ok(())
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }

    /// Starts a thread for each core. They end when `stop` turns true and all requests under way have ended, or
    /// `drain` later.
    pub fn start(
        &self,
        listeners: &[Listener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<Vec<JoinHandle<()>>, StartError> {
        let cores = listeners.iter().map(|listener| listener.sockets.len()).max().unwrap_or_default();
        (0..cores).map(|core| self.start_core(core, listeners, stop, drain)).collect()
    }

    fn start_core(
        &self,
        core: usize,
        listeners: &[Listener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<JoinHandle<()>, StartError> {
        let mut sockets = Vec::new();
        for listener in listeners {
            if let Some(socket) = listener.sockets.get(core) {
                let address = listener.address();
                let socket =
                    socket.try_clone().map_err(|source| StartError::Listener { core, address, source })?;
                sockets.push(CoreSocket { socket, address, tls: listener.tls.clone() });
            }
        }
        let (live, shared) = (Arc::clone(&self.live), self.shared.clone());
        let (connector, bounds, connections) =
            (self.connector.clone(), self.bounds, Arc::clone(&self.connections));
        let stop = stop.clone();
        let (starting, started) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("core-{core}"));
        let handle = thread.spawn(move || {
            // Made on the thread where it stays: no part of a request changes threads.
            let runtime =
                match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                    Ok(runtime) => runtime,
                    Err(source) => return drop(starting.send(Err(StartError::Runtime { core, source }))),
                };
            runtime.block_on(async {
                let acceptors = match acceptors(core, sockets, &connections) {
                    Ok(acceptors) => acceptors,
                    Err(error) => return drop(starting.send(Err(error))),
                };
                // If nobody receives it, the gateway is to stop, which `stop` says too.
                let _ = starting.send(Ok(()));
                if core == 0 {
                    let log = shared.telemetry.log().clone();
                    tokio::task::spawn_local(health::watch(Arc::clone(&live), connector.clone(), log));
                }
                let core = Rc::new(Core::new(live, shared, connector, bounds, stop.clone()));
                run(core, acceptors, stop, drain).await;
            });
        });
        let handle = handle.map_err(|source| StartError::Thread { core, source })?;
        // A closed channel means the thread failed to start.
        started.recv().unwrap_or(Err(StartError::Ended { core }))?;
        Ok(handle)
    }
}

/// A core's socket of one listener.
struct CoreSocket {
    socket: std::net::TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

/// Registers the sockets of a core with its runtime.
fn acceptors(
    core: usize,
    sockets: Vec<CoreSocket>,
    limiter: &Arc<ConnectionLimiter>,
) -> Result<Vec<Acceptor>, StartError> {
    let acceptor = |CoreSocket { socket, address, tls }| {
        let listener = TcpListener::from_std(socket);
        let listener = listener.map_err(|source| StartError::Listener { core, address, source })?;
        Ok(Acceptor { listener, tls, limiter: Arc::clone(limiter) })
    };
    sockets.into_iter().map(acceptor).collect()
}

/// Serves with one core until `stop` turns true, then drains its connections.
async fn run<S: Store + 'static>(
    core: Rc<Core<S>>,
    acceptors: Vec<Acceptor>,
    mut stop: watch::Receiver<bool>,
    drain: Duration,
) {
    // The accept loops, open connections and their tunnels.
    let open = TaskTracker::new();
    tokio::task::spawn_local(Rc::clone(&core.watchdog).run(stop.clone()));
    tokio::task::spawn_local(Rc::clone(&core.transport).run());
    for acceptor in acceptors {
        let accepting = acceptor.run(Rc::clone(&core), stop.clone(), open.clone());
        tokio::task::spawn_local(open.track_future(accepting));
    }
    // A closed channel means the same as `true`.
    let _ = stop.wait_for(|stop| *stop).await;
    core.begin_stopping();
    open.close();
    // What is still open after that is cut off.
    let _ = tokio::time::timeout(drain, open.wait()).await;
}
