//! Makes a gateway of a policy, a store and what differs from the defaults.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use tidegate_policy::Active;
use tidegate_store::{Clock, Store, SystemClock};
use tidegate_telemetry::Telemetry;

use crate::conn::ConnectionLimiter;
use crate::resource_limits::ResourceLimits;
use crate::server::{Gateway, PolicyError, StartError, retain_limits};
use crate::snapshot::Live;
use crate::upstream::Connector;
use crate::worker::Shared;

/// A gateway that is being made; see [`Gateway::builder`].
#[derive(Debug)]
#[must_use]
pub struct GatewayBuilder<S> {
    active: Active,
    store: Arc<S>,
    limits: ResourceLimits,
    clock: Option<Arc<dyn Clock>>,
    telemetry: Option<Telemetry>,
}

impl<S: Store + 'static> GatewayBuilder<S> {
    pub(crate) fn new(active: Active, store: Arc<S>) -> Self {
        Self { active, store, limits: ResourceLimits::default(), clock: None, telemetry: None }
    }

    /// What one client may cost.
    pub fn resource_limits(mut self, limits: ResourceLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The clock to decide by, instead of the system's.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Where requests are counted, logged and traced. By default they are only counted.
    pub fn telemetry(mut self, telemetry: Telemetry) -> Self {
        self.telemetry = Some(telemetry);
        self
    }

    /// The gateway. It serves nobody until it is started.
    pub fn build(self) -> Result<Gateway<S>, StartError> {
        let Self { active, store, limits, clock, telemetry } = self;
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let telemetry = telemetry.unwrap_or_else(|| {
            let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
            Telemetry::counting(cores, Arc::clone(&clock))
        });
        let retained = retain_limits(&*store, &active, &*clock).map_err(PolicyError::from)?;
        let live = Live::new(active, None, telemetry.metrics()).map_err(PolicyError::from)?;
        Ok(Gateway {
            limits: Mutex::new(retained),
            live: Arc::new(ArcSwap::from_pointee(live)),
            shared: Shared {
                store,
                clock,
                bans: Arc::default(),
                telemetry,
                penalties: Arc::default(),
                permits: Arc::default(),
            },
            connector: Connector::new(limits.connect, &RootCertStore::empty())?,
            limiter: ConnectionLimiter::new(limits.connections, limits.connections_per_address),
            bounds: limits,
        })
    }
}
