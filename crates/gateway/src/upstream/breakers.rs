//! The circuit breakers of an upstream: one for each server, or one for all of them.

use std::sync::Arc;

use tidegate_core::{BreakerConfigError, TimeSpan};
use tidegate_policy::{BreakerPlan, BreakerScope};
use tidegate_store::Clock;
use tidegate_tower::breaker::{BreakerOpen, BreakerPermit, CircuitBreaker};

/// The breakers of an upstream.
#[derive(Clone, Debug)]
pub(crate) enum BreakerSet {
    /// The policy has none.
    Off,
    /// One for all servers.
    Shared(CircuitBreaker),
    /// One for each server, in their order.
    PerServer(Vec<CircuitBreaker>),
}

impl BreakerSet {
    pub(super) fn new(
        plan: Option<&BreakerPlan>,
        servers: usize,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, BreakerConfigError> {
        let Some(BreakerPlan { config, scope }) = plan else { return Ok(Self::Off) };
        let breaker = || CircuitBreaker::with_clock(*config, Arc::clone(clock));
        Ok(match scope {
            BreakerScope::Upstream => Self::Shared(breaker()?),
            BreakerScope::Server => {
                Self::PerServer((0..servers).map(|_| breaker()).collect::<Result<_, _>>()?)
            }
        })
    }

    /// Keeps the breakers of an earlier set with the same settings. `earlier_index` finds the earlier place of a server.
    pub(super) fn adopt(&mut self, earlier: &Self, earlier_index: impl Fn(usize) -> Option<usize>) {
        match (self, earlier) {
            (Self::Shared(breaker), Self::Shared(known)) => *breaker = known.clone(),
            (Self::PerServer(breakers), Self::PerServer(known)) => {
                for (index, breaker) in breakers.iter_mut().enumerate() {
                    if let Some(known) = earlier_index(index).and_then(|index| known.get(index)) {
                        *breaker = known.clone();
                    }
                }
            }
            _ => {}
        }
    }

    /// The breaker of all servers, if there is one.
    pub(crate) fn shared(&self) -> Option<&CircuitBreaker> {
        match self {
            Self::Shared(breaker) => Some(breaker),
            Self::Off | Self::PerServer(_) => None,
        }
    }

    /// The breaker of one server, if each has one.
    pub(crate) fn of_server(&self, index: usize) -> Option<&CircuitBreaker> {
        match self {
            Self::PerServer(breakers) => breakers.get(index),
            Self::Off | Self::Shared(_) => None,
        }
    }

    /// Admits an attempt at a server. `None` without a breaker.
    #[inline]
    pub(super) fn try_acquire(&self, index: usize) -> Result<Option<BreakerPermit>, BreakerOpen> {
        match self {
            Self::Off => Ok(None),
            Self::Shared(breaker) => breaker.try_acquire().map(Some),
            Self::PerServer(breakers) => breakers.get(index).map(CircuitBreaker::try_acquire).transpose(),
        }
    }
}

/// The earlier of two times until a probe; `None` is not known.
pub(super) fn earliest(left: Option<TimeSpan>, right: Option<TimeSpan>) -> Option<TimeSpan> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (known, None) | (None, known) => known,
    }
}
