//! Builds a gateway from a limiter and settings that differ from the defaults.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use tidegate_limiter::Limiter;
use tidegate_listener::ConnectionLimiter;
use tidegate_store::Store;
use tidegate_telemetry::Telemetry;

use crate::resource_limits::ResourceLimits;
use crate::server::{Gateway, PolicyError, StartError};
use crate::snapshot::Snapshot;
use crate::upstream::Connector;
use crate::worker::SharedState;

/// Builds a [`Gateway`]; see [`Gateway::builder`].
#[derive(Debug)]
#[must_use]
pub struct GatewayBuilder<S> {
    limiter: Arc<Limiter<S>>,
    limits: ResourceLimits,
    telemetry: Option<Telemetry>,
}

impl<S: Store + 'static> GatewayBuilder<S> {
    pub(crate) fn new(limiter: Arc<Limiter<S>>) -> Self {
        Self { limiter, limits: ResourceLimits::default(), telemetry: None }
    }

    /// Sets the limits on the resources that clients may use.
    pub fn resource_limits(mut self, limits: ResourceLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets where requests are counted, logged and traced. By default they are only counted.
    pub fn telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = Some(telemetry);
        self
    }

    /// Builds the gateway. It accepts no connections until it is started.
    pub fn build(self) -> Result<Gateway<S>, StartError> {
        let Self { limiter, limits, telemetry } = self;
        let telemetry = telemetry.unwrap_or_else(|| {
            let workers = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
            Telemetry::metrics_only(workers, Arc::clone(limiter.clock()))
        });
        let shared = SharedState { limiter, telemetry, pressure: Arc::default() };
        let policy = shared.limiter.policy();
        let snapshot = Snapshot::new(policy, None, &shared, &limits).map_err(PolicyError::from)?;
        Ok(Gateway {
            snapshot: Arc::new(ArcSwap::from_pointee(snapshot)),
            shared,
            replacing: Mutex::default(),
            connector: Connector::new(&RootCertStore::empty())?,
            connections: ConnectionLimiter::new(limits.connections, limits.connections_per_address),
            limits,
        })
    }
}
