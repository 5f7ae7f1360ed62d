//! How a tier calls the next one: with the stack, or as services without one do.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use tidegate_core::{BreakerConfig, RetryBudget, TimeSpan};
use tidegate_store::Clock;
use tidegate_tower::breaker::{BreakerLayer, CircuitBreaker};
use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig, BulkheadLayer};
use tidegate_tower::deadline::{DeadlineLayer, OutgoingDeadlineLayer};
use tidegate_tower::retry::{RetryConfig, RetryLayer, SharedRetryBudget};
use tidegate_tower::timeout::TimeoutLayer;
use tokio::time::timeout;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

use super::tier::{Remote, TierRequest, TierResponse, TierService};

/// Whether the tiers use the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// Three attempts of one second each, and nothing else.
    Off,
    /// Deadline, bulkhead, retry with budget, breaker and timeout.
    On,
}

const ATTEMPTS: usize = 3;
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

impl Stack {
    /// A tier as its callers see it.
    pub(super) fn server<S>(self, tier: S, clock: &Arc<dyn Clock>) -> TierService
    where
        S: Service<TierRequest, Response = TierResponse, Error = BoxError> + Clone + Send + Sync + 'static,
        S::Future: Send,
    {
        match self {
            Self::Off => BoxCloneSyncService::new(tier),
            Self::On => {
                let layer = DeadlineLayer::new().clock(Arc::clone(clock));
                BoxCloneSyncService::new(
                    ServiceBuilder::new().map_err(BoxError::from).layer(layer).service(tier),
                )
            }
        }
    }

    /// The next tier as a tier calls it. At most `concurrent` calls are in flight, with the stack.
    pub(super) fn client(
        self,
        remote: Remote,
        concurrent: usize,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<TierService> {
        Ok(match self {
            Self::Off => BoxCloneSyncService::new(service_fn(move |request| retry(remote.clone(), request))),
            Self::On => BoxCloneSyncService::new(with_stack(remote, concurrent, clock)?),
        })
    }
}

/// Tries until a call succeeds, without a budget and without a breaker.
async fn retry(remote: Remote, request: TierRequest) -> Result<TierResponse, BoxError> {
    let mut last: Result<TierResponse, BoxError> = Err("no attempt was made".into());
    for _ in 0..ATTEMPTS {
        last = match timeout(ATTEMPT_TIMEOUT, remote.clone().oneshot(request.clone())).await {
            Ok(response) => response.map_err(Into::into),
            Err(elapsed) => Err(elapsed.into()),
        };
        if last.as_ref().is_ok_and(|response| response.status().is_success()) {
            break;
        }
    }
    last
}

fn with_stack(
    remote: Remote,
    concurrent: usize,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<
    impl Service<TierRequest, Response = Response<()>, Error = BoxError, Future: Send>
    + Clone
    + Send
    + Sync
    + use<>,
> {
    let open_for = TimeSpan::from_secs(1);
    let breaker = BreakerConfig { open_for, max_open_for: open_for, ..BreakerConfig::default() };
    let breaker = CircuitBreaker::with_clock(breaker, Arc::clone(clock))?;
    let budget = SharedRetryBudget::with_clock(RetryBudget::default(), Arc::clone(clock));
    Ok(ServiceBuilder::new()
        .map_err(BoxError::from)
        .layer(BulkheadLayer::new(Bulkhead::new(BulkheadConfig::new(concurrent))))
        .layer(RetryLayer::new(RetryConfig::default(), budget))
        .layer(BreakerLayer::new(breaker))
        .layer(TimeoutLayer::new(ATTEMPT_TIMEOUT / 2))
        .layer(OutgoingDeadlineLayer::new().clock(Arc::clone(clock)))
        .service(remote))
}
