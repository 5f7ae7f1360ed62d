//! How the contenders retry: up to three attempts, with a budget.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Backoff, Jitter, TimeSpan};
use tidegate_tower::LayerError;
use tidegate_tower::retry::{RetryAdvice, RetryConfig, RetryLayer, SharedRetryBudget};
use tower::retry::Policy;
use tower::retry::budget::{Budget, TpsBudget};
use tower_resilience::retry::{RetryBudget, RetryBudgetBuilder};

/// The first attempt included.
pub(crate) const ATTEMPTS: usize = 3;
/// The wait before the first retry.
pub(crate) const BASE: Duration = Duration::from_millis(50);
/// The longest wait.
const CAP: Duration = Duration::from_secs(2);
/// Retries per second that need no requests.
pub(crate) const MIN_PER_SECOND: u32 = 10;

/// What all contenders do after a failure.
pub(crate) type OurRetryLayer = RetryLayer<fn(&super::service::Call, Result<&(), &LayerError>) -> RetryAdvice>;

/// Our layer, with the default budget: a tenth of requests, and ten per second.
pub(crate) fn our_layer() -> anyhow::Result<OurRetryLayer> {
    let backoff = Backoff::new(span(BASE), span(CAP), Jitter::Decorrelated)?;
    let config = RetryConfig { attempts: u32::try_from(ATTEMPTS)?, backoff, ..RetryConfig::default() };
    let rules: fn(&super::service::Call, Result<&(), &LayerError>) -> RetryAdvice =
        |_, result| if result.is_ok() { RetryAdvice::Stop } else { RetryAdvice::Retry };
    Ok(RetryLayer::new(config, SharedRetryBudget::default()).rules(rules))
}

fn span(duration: Duration) -> TimeSpan {
    TimeSpan::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// The closest budget of tower-resilience: a bucket of ten tokens that gains ten per second.
pub(crate) fn peer_budget() -> anyhow::Result<Arc<dyn RetryBudget>> {
    let minimum = MIN_PER_SECOND as usize;
    let bucket = RetryBudgetBuilder::new().token_bucket();
    Ok(bucket
        .tokens_per_second(f64::from(MIN_PER_SECOND))
        .max_tokens(minimum)
        .initial_tokens(minimum)
        .build()?)
}

/// Tower's policy with its budget: a tenth of requests over ten seconds, and ten per second.
#[derive(Clone, Debug)]
pub(crate) struct TowerPolicy {
    budget: Arc<TpsBudget>,
    attempts_left: usize,
}

impl TowerPolicy {
    pub(crate) fn new() -> Self {
        let budget = Arc::new(TpsBudget::new(Duration::from_secs(10), MIN_PER_SECOND, 0.1));
        Self { budget, attempts_left: ATTEMPTS - 1 }
    }
}

impl<R: Clone, T, E> Policy<R, T, E> for TowerPolicy {
    type Future = Ready<()>;

    fn retry(&mut self, _request: &mut R, result: &mut Result<T, E>) -> Option<Self::Future> {
        if result.is_ok() {
            self.budget.deposit();
            return None;
        }
        if self.attempts_left == 0 || !self.budget.withdraw() {
            return None;
        }
        self.attempts_left -= 1;
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &R) -> Option<R> {
        Some(request.clone())
    }
}
