//! The state that bounds and repeats the requests to one upstream. All workers share it, and a reload keeps the parts whose
//! settings have not changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;
use tidegate_core::{AdaptiveConfigError, BreakerConfigError, RetryBudget};
use tidegate_policy::{BulkheadPlan, ResiliencePlan};
use tidegate_store::Clock;
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig};
use tidegate_tower::load_shed::LoadShedder;
use tidegate_tower::retry::SharedRetryBudget;

use super::breakers::BreakerSet;
use super::client_shares::FailureShares;
use crate::error::FixedResponse;
use crate::resource_limits::ResourceLimits;

/// A request waits at least this long for a connection: other workers close idle ones meanwhile.
const MIN_CONNECTION_WAIT: Duration = Duration::from_millis(100);

/// The resilience settings of an upstream cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ResilienceError {
    /// The breaker is invalid.
    #[error(transparent)]
    Breaker(#[from] BreakerConfigError),
    /// The adaptive limit is invalid.
    #[error(transparent)]
    Shed(#[from] AdaptiveConfigError),
}

/// Breakers, budget, bulkheads and load shedding of one upstream.
#[derive(Debug)]
pub(crate) struct ResilienceState {
    pub(crate) plan: ResiliencePlan,
    pub(crate) timeouts: AttemptTimeouts,
    pub(crate) breakers: BreakerSet,
    pub(crate) budget: SharedRetryBudget,
    /// What each client has used of the budget.
    pub(super) retry_shares: Arc<FailureShares>,
    /// Retries so far.
    retries: Arc<AtomicU64>,
    /// Bounds requests in flight.
    pub(crate) bulkhead: Option<Bulkhead>,
    /// Bounds open connections.
    pub(crate) connections: Option<Bulkhead>,
    /// Bounds those of them that carry a single request to a server of HTTP/2.
    pub(super) lone_connections: Option<Bulkhead>,
    pub(crate) shed: Option<LoadShedder>,
    /// The fixed response while the breaker is open.
    pub(crate) fixed_response: Option<Arc<FixedResponse>>,
}

/// The timeouts of an upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptTimeouts {
    pub(crate) connect: Duration,
    /// Until the response starts, in each attempt.
    pub(crate) request: Duration,
    pub(crate) idle: Duration,
    /// Until the response starts, for all attempts together.
    pub(crate) total: Duration,
    /// Whether the server is told the rest of the total time if the request has no deadline.
    pub(crate) starts_deadline: bool,
}

impl ResilienceState {
    pub(super) fn new(
        plan: &ResiliencePlan,
        servers: usize,
        clock: &Arc<dyn Clock>,
        limits: &ResourceLimits,
    ) -> Result<Self, ResilienceError> {
        let ResiliencePlan { timeouts, retry, breaker, bulkhead: bounds, shed, .. } = plan;
        let timeouts = AttemptTimeouts {
            connect: Duration::from(timeouts.connect).min(limits.connect_timeout),
            request: Duration::from(timeouts.request).min(limits.response_timeout),
            idle: Duration::from(timeouts.idle).min(limits.upstream_idle),
            total: Duration::from(timeouts.total),
            starts_deadline: timeouts.starts_deadline,
        };
        let budget = RetryBudget::new(retry.budget.share, retry.budget.floor);
        let shed = shed.map(|config| LoadShedder::with_clock(config, Arc::clone(clock))).transpose()?;
        Ok(Self {
            timeouts,
            breakers: BreakerSet::new(breaker.as_ref(), servers, clock)?,
            budget: SharedRetryBudget::with_clock(budget, Arc::clone(clock)),
            retry_shares: Arc::default(),
            retries: Arc::default(),
            bulkhead: bounds.as_ref().map(bulkhead),
            connections: bounds.as_ref().and_then(|plan| Some(connections(plan, plan.connections?))),
            lone_connections: bounds.as_ref().and_then(|plan| Some(connections(plan, plan.connections? / 2))),
            shed,
            fixed_response: plan.fallback.as_ref().and_then(FixedResponse::new).map(Arc::new),
            plan: plan.clone(),
        })
    }

    /// Keeps the state of the parts that have the same settings. `earlier_index` finds the earlier place of a server.
    pub(super) fn adopt(&mut self, earlier: &Self, earlier_index: impl Fn(usize) -> Option<usize>) {
        let (new, old) = (&self.plan, &earlier.plan);
        self.retries = Arc::clone(&earlier.retries);
        if new.retry.budget == old.retry.budget {
            self.budget = earlier.budget.clone();
            self.retry_shares = Arc::clone(&earlier.retry_shares);
        }
        if new.breaker == old.breaker {
            self.breakers.adopt(&earlier.breakers, earlier_index);
        }
        if new.bulkhead == old.bulkhead {
            self.bulkhead.clone_from(&earlier.bulkhead);
            self.connections.clone_from(&earlier.connections);
            self.lone_connections.clone_from(&earlier.lone_connections);
        }
        if new.shed == old.shed {
            self.shed.clone_from(&earlier.shed);
        }
    }

    /// Whether a request may be rejected after it was charged and before it is sent.
    pub(crate) fn can_reject(&self) -> bool {
        self.shed.is_some() || self.bulkhead.is_some() || !matches!(self.breakers, BreakerSet::Off)
    }

    /// Whether a request that needs a connection may have to wait for its slot.
    pub(crate) fn may_wait_for_connection(&self) -> bool {
        let is_full = |slots: &Bulkhead| slots.in_use() >= slots.config().concurrent;
        [&self.connections, &self.lone_connections].into_iter().flatten().any(is_full)
    }

    pub(crate) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }
}

/// The bulkhead of an upstream or a route.
pub(crate) fn bulkhead(plan: &BulkheadPlan) -> Bulkhead {
    Bulkhead::new(BulkheadConfig::new(plan.concurrent as usize).queue(plan.queue as usize, plan.wait))
}

/// Bounds connections to `most`, at least one. Every request that needs one may wait: the bulkhead bounds their number.
fn connections(plan: &BulkheadPlan, most: u32) -> Bulkhead {
    let (most, wait) = (most.max(1), Duration::from(plan.wait).max(MIN_CONNECTION_WAIT));
    Bulkhead::new(BulkheadConfig::new(most as usize).queue(usize::MAX, wait))
}
