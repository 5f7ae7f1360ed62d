//! All cores together.

use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use thiserror::Error;
use tidegate_policy::{Active, Bans};
use tidegate_store::{Clock, Penalties, Permits, RetainedLimits, Store, StoreError, SystemClock};
use tidegate_telemetry::{Kind, Page, Reader, Telemetry};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::conn::{Acceptor, ConnectionLimiter, Listener, accept};
use crate::resource_limits::ResourceLimits;
use crate::snapshot::{Live, LiveError};
use crate::upstream::{Connector, TlsError, health};
use crate::worker::{Core, Shared};

/// How often a core that drains looks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// The reverse proxy: a policy in force, and cores that serve it.
#[derive(Debug)]
pub struct Gateway<S> {
    live: Arc<ArcSwap<Live>>,
    shared: Shared<S>,
    /// The limits of the policy in force, which the store must be able to count under.
    limits: Mutex<RetainedLimits>,
    connector: Connector,
    bounds: ResourceLimits,
    limiter: Arc<ConnectionLimiter>,
}

/// Why a gateway cannot start.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// Its policy cannot be served.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The store cannot count under the limits of its policy.
    #[error(transparent)]
    Limits(#[from] StoreError),
    /// TLS towards upstreams cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A core cannot start.
    #[error("cannot start a core")]
    Core(#[from] io::Error),
}

impl<S: Store + 'static> Gateway<S> {
    /// A gateway that serves `active` with the counters of `store`.
    pub fn new(active: Active, store: Arc<S>) -> Result<Self, GatewayError> {
        Self::with_bounds(active, store, ResourceLimits::default())
    }

    /// The same within other bounds.
    pub fn with_bounds(active: Active, store: Arc<S>, bounds: ResourceLimits) -> Result<Self, GatewayError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let telemetry = Telemetry::counting(cores, Arc::clone(&clock));
        Ok(Self {
            limits: Mutex::new(retain_limits(&*store, &active, &*clock)?),
            live: Arc::new(ArcSwap::from_pointee(Live::new(active, None, telemetry.metrics())?)),
            shared: Shared {
                store,
                clock,
                bans: Arc::default(),
                telemetry,
                penalties: Arc::default(),
                permits: Arc::default(),
            },
            connector: Connector::new(bounds.connect, &RootCertStore::empty())?,
            limiter: ConnectionLimiter::new(bounds.connections, bounds.connections_per_address),
            bounds,
        })
    }

    /// The same by another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.shared.clock = clock;
        self
    }

    /// The same, telling its stories to `telemetry`.
    pub fn with_telemetry(mut self, telemetry: Telemetry) -> Result<Self, GatewayError> {
        self.live.store(Arc::new(Live::new(self.active(), None, telemetry.metrics())?));
        self.shared.telemetry = telemetry;
        Ok(self)
    }

    /// What is counted, and what is known of connections and upstreams.
    pub fn page(&self, reader: Reader) -> Page {
        let mut page = self.shared.telemetry.page(reader, self.shared.clock.now());
        let open = self.connections();
        page.single("tidegate_connections_open", Kind::Gauge, "Connections of clients that are open.", open);
        self.live.load().write(&mut page);
        page
    }

    /// The same with lock-outs that are known already, and that others look at too.
    #[must_use]
    pub fn with_penalties(mut self, penalties: Arc<Penalties>) -> Self {
        self.shared.penalties = penalties;
        self
    }

    /// Who is locked out.
    pub fn penalties(&self) -> &Arc<Penalties> {
        &self.shared.penalties
    }

    /// How many requests are under way that a rule counts.
    pub fn permits(&self) -> &Arc<Permits> {
        &self.shared.permits
    }

    /// Puts another policy in force, whole or not at all. Requests under way keep theirs; counters stay.
    pub fn replace(&self, active: Active) -> Result<(), GatewayError> {
        // Held to the end: policies are replaced one after another.
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let retained = retain_limits(&*self.shared.store, &active, &*self.shared.clock)?;
        let live = Live::new(active, Some(&self.live.load()), self.shared.telemetry.metrics())?;
        self.live.store(Arc::new(live));
        *limits = retained;
        Ok(())
    }

    /// The policy in force.
    pub fn active(&self) -> Active {
        self.live.load().active.clone()
    }

    /// Puts other bans in force, beside those of the policy. From now on every request meets them.
    pub fn ban(&self, bans: Bans) {
        self.shared.bans.replace(bans);
    }

    /// The bans in force, those that are over included.
    pub fn bans(&self) -> Arc<Bans> {
        self.shared.bans.all()
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.limiter.count()
    }

    /// Starts a thread for each core. They end when `stop` turns true and all requests under way have ended, or
    /// `drain` later.
    pub fn start(
        &self,
        listeners: &[Listener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<Vec<JoinHandle<()>>, GatewayError> {
        let cores = listeners.iter().map(|listener| listener.sockets.len()).max().unwrap_or_default();
        (0..cores).map(|core| self.start_core(core, listeners, stop, drain)).collect()
    }

    fn start_core(
        &self,
        number: usize,
        listeners: &[Listener],
        stop: &watch::Receiver<bool>,
        drain: Duration,
    ) -> Result<JoinHandle<()>, GatewayError> {
        let mut sockets = Vec::new();
        for listener in listeners {
            if let Some(socket) = listener.sockets.get(number) {
                sockets.push((socket.try_clone()?, listener.tls.clone()));
            }
        }
        let (live, shared) = (Arc::clone(&self.live), self.shared.clone());
        let (connector, bounds, limiter) = (self.connector.clone(), self.bounds, Arc::clone(&self.limiter));
        let stop = stop.clone();
        let thread = std::thread::Builder::new().name(format!("core-{number}"));
        let (starts, started) = std::sync::mpsc::sync_channel(1);
        let handle = thread.spawn(move || {
            // Made here, where it stays: nothing of a request changes threads.
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(starts.send(Err(error))),
            };
            // If nobody listens any more, it is to stop, and finds out.
            let _ = starts.send(Ok(()));
            runtime.block_on(async {
                if number == 0 {
                    let log = shared.telemetry.log().clone();
                    tokio::task::spawn_local(health::watch(Arc::clone(&live), connector.clone(), log));
                }
                let core = Rc::new(Core::new(live, shared, connector, bounds, stop.clone()));
                run(core, sockets, limiter, stop, drain).await;
            });
        })?;
        // Who cannot say that it started has not.
        started.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(handle)
    }
}

/// Has the store retain every limit of a policy.
fn retain_limits(
    store: &impl Store,
    active: &Active,
    clock: &dyn Clock,
) -> Result<RetainedLimits, StoreError> {
    let limits: Vec<_> = active.matcher.plan().rate_limits.iter().map(|rule| rule.limit).collect();
    store.retain_limits(&limits, clock.now())
}

/// Serves with one core until `stop` turns true, then drains its connections.
async fn run<S: Store + 'static>(
    core: Rc<Core<S>>,
    sockets: Vec<(std::net::TcpListener, Option<TlsAcceptor>)>,
    limiter: Arc<ConnectionLimiter>,
    mut stop: watch::Receiver<bool>,
    drain: Duration,
) {
    let open = Rc::new(());
    tokio::task::spawn_local(Rc::clone(&core.watchdog).run(stop.clone()));
    tokio::task::spawn_local(Rc::clone(&core.patience).go());
    tokio::task::spawn_local(Rc::clone(&core.pools).go());
    for (socket, tls) in sockets {
        let acceptor = Acceptor { socket, tls, limiter: Arc::clone(&limiter), open: Rc::clone(&open) };
        tokio::task::spawn_local(accept(Rc::clone(&core), acceptor, stop.clone()));
    }
    // A closed channel means the same as `true`.
    let _ = stop.wait_for(|stop| *stop).await;
    core.begin_stopping();
    let drained = async {
        while Rc::strong_count(&open) > 1 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    // What is still open after that is cut off.
    let _ = tokio::time::timeout(drain, drained).await;
}
