//! The gateway: the active policy, and one thread for each worker.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use thiserror::Error;
use tidegate_core::TimeSpan;
use tidegate_limiter::Limiter;
use tidegate_listener::{ConnectionLimiter, Listener, WorkerSocket, WorkerStartError, start_workers};
use tidegate_policy::ActivePolicy;
use tidegate_store::{Store, StoreError};
use tidegate_telemetry::{Exposition, MetricsReader};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::builder::GatewayBuilder;
use crate::conn::accept;
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
    /// A worker cannot start.
    #[error(transparent)]
    Worker(#[from] WorkerStartError),
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
        let listeners: Vec<_> = listeners.iter().collect();
        let workers = start_workers("worker", &listeners, |number| {
            let (snapshot, shared) = (Arc::clone(&self.snapshot), self.shared.clone());
            let (connector, limits) = (self.connector.clone(), self.limits);
            let (connections, stop) = (Arc::clone(&self.connections), stop.clone());
            move |sockets| async move {
                if number == 0 {
                    let log = shared.telemetry.log().clone();
                    tokio::task::spawn_local(health::watch(Arc::clone(&snapshot), connector.clone(), log));
                }
                let worker = Rc::new(Worker::new(snapshot, shared, connector, limits, stop.clone()));
                run(worker, sockets, &connections, stop, drain).await;
            }
        });
        Ok(workers?)
    }
}

/// Serves with one worker until `stop` turns true, then drains its connections.
async fn run<S: Store + 'static>(
    worker: Rc<Worker<S>>,
    sockets: Vec<WorkerSocket>,
    connections: &Arc<ConnectionLimiter>,
    mut stop: watch::Receiver<bool>,
    drain: Duration,
) {
    // Tracks the accept loops, open connections and upgraded connections.
    let open = TaskTracker::new();
    tokio::task::spawn_local(Rc::clone(&worker.watchdog).run(stop.clone()));
    tokio::task::spawn_local(Rc::clone(&worker.transport).run());
    for socket in sockets {
        let limiter = Arc::clone(connections);
        let accepting = accept(socket, limiter, Rc::clone(&worker), stop.clone(), open.clone());
        tokio::task::spawn_local(open.track_future(accepting));
    }
    // A closed channel means the same as `true`.
    let _ = stop.wait_for(|stop| *stop).await;
    worker.begin_stopping();
    worker.limiter.waits().end_at(worker.limiter.clock().now() + TimeSpan::from(drain));
    open.close();
    // Connections that are still open after `drain` are aborted.
    let _ = tokio::time::timeout(drain, open.wait()).await;
}
