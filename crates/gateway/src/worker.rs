//! The state of one worker thread.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use tidegate_headers::HeaderValueCache;
use tidegate_limiter::Limiter;
use tidegate_policy::{PooledScratch, ScratchPool};
use tidegate_store::Store;
use tidegate_telemetry::{Log, Protocol, Recorder, Telemetry};
use tokio::sync::watch;

use crate::conn::Watchdog;
use crate::resource_limits::ResourceLimits;
use crate::snapshot::Snapshot;
use crate::upstream::{Connector, PoolPressure, Server, TimeoutWheel, Transport};

/// The state that all workers share.
#[derive(Debug)]
pub(crate) struct SharedState<S> {
    pub(crate) limiter: Arc<Limiter<S>>,
    pub(crate) telemetry: Telemetry,
    pub(crate) pressure: Arc<PoolPressure>,
}

impl<S> Clone for SharedState<S> {
    fn clone(&self) -> Self {
        let (limiter, pressure) = (Arc::clone(&self.limiter), Arc::clone(&self.pressure));
        Self { limiter, telemetry: self.telemetry.clone(), pressure }
    }
}

/// The state of one worker. State that is shared with other workers is behind an `Arc`.
#[derive(Debug)]
pub(crate) struct Worker<S> {
    snapshot: RefCell<Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>>,
    pub(crate) limiter: Arc<Limiter<S>>,
    pub(crate) recorder: Recorder,
    pub(crate) log: Log,
    pub(crate) transport: Rc<Transport>,
    pub(crate) watchdog: Rc<Watchdog>,
    pub(crate) timeouts: Rc<TimeoutWheel>,
    pub(crate) limits: ResourceLimits,
    scratches: ScratchPool,
    pub(crate) header_values: RefCell<HeaderValueCache>,
    is_stopping: Cell<bool>,
    stop: watch::Receiver<bool>,
    /// The snapshot that the latest request was served with.
    served: RefCell<Rc<WorkerSnapshot>>,
}

/// The active snapshot. Requests share it by an `Rc`, so that its reference count is not contended between CPU cores.
#[derive(Debug)]
pub(crate) struct WorkerSnapshot(Arc<Snapshot>);

impl Deref for WorkerSnapshot {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.0
    }
}

impl<S: Store + 'static> Worker<S> {
    pub(crate) fn new(
        snapshot: Arc<ArcSwap<Snapshot>>,
        shared: SharedState<S>,
        connector: Connector,
        limits: ResourceLimits,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let SharedState { limiter, telemetry, pressure } = shared;
        let served = Rc::new(WorkerSnapshot(snapshot.load_full()));
        let transport = Transport::new(connector, &limits, pressure, limiter.clock());
        transport.set_shortest_idle(served.shortest_idle());
        Self {
            served: RefCell::new(served),
            snapshot: RefCell::new(Cache::new(snapshot)),
            recorder: telemetry.recorder(Protocol::Gateway, Arc::clone(limiter.clock())),
            log: telemetry.log().clone(),
            limiter,
            transport,
            watchdog: Rc::new(Watchdog::new(&limits)),
            timeouts: Rc::default(),
            limits,
            scratches: ScratchPool::default(),
            header_values: RefCell::default(),
            is_stopping: Cell::new(false),
            stop,
        }
    }

    /// The active snapshot. The first request after a reload closes idle connections to servers that were removed.
    pub(crate) fn snapshot(&self) -> Rc<WorkerSnapshot> {
        let (mut snapshot, mut served) = (self.snapshot.borrow_mut(), self.served.borrow_mut());
        let snapshot = snapshot.load();
        if !Arc::ptr_eq(snapshot, &served.0) {
            *served = Rc::new(WorkerSnapshot(Arc::clone(snapshot)));
            let is_used = |server: &Arc<Server>| {
                snapshot
                    .upstreams()
                    .iter()
                    .flat_map(|upstream| &upstream.servers)
                    .any(|used| Arc::ptr_eq(used, server))
            };
            self.transport.keep_only(is_used);
            self.transport.set_shortest_idle(snapshot.shortest_idle());
        }
        Rc::clone(&served)
    }

    /// From now on every response is the last of its connection.
    pub(crate) fn begin_stopping(&self) {
        self.is_stopping.set(true);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }

    /// Turns true when the worker must stop.
    pub(crate) fn stop(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    /// Takes a scratch from the pool.
    pub(crate) fn scratch(&self) -> PooledScratch<'_> {
        self.scratches.take()
    }
}
