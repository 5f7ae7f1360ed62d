//! The layer.

use tidegate_core::{Backoff, Jitter, TimeSpan};
use tower_layer::Layer;

use super::handle::SharedRetryBudget;
use super::http_rules::HttpRetry;
use super::service::RetryService;

/// How often and when a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryConfig {
    /// Attempts in all, the first included. 1 is no retry.
    pub attempts: u32,
    /// The waits between attempts.
    pub backoff: Backoff,
    /// If the service asks for a longer wait than this, the result is final.
    pub max_retry_after: TimeSpan,
}

impl Default for RetryConfig {
    /// Three attempts, with waits between 50 ms and 2 s; `Retry-After` up to 10 s.
    fn default() -> Self {
        let (base, cap) = (TimeSpan::from_millis(50), TimeSpan::from_secs(2));
        let Ok(backoff) = Backoff::new(base, cap, Jitter::Decorrelated) else {
            unreachable!("the cap is above the base")
        };
        Self { attempts: 3, backoff, max_retry_after: TimeSpan::from_secs(10) }
    }
}

impl RetryConfig {
    /// At most this many attempts in all.
    pub fn attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Waits like this between attempts.
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// Waits at most this long if the service asks for a wait.
    pub fn max_retry_after(self, max: impl Into<TimeSpan>) -> Self {
        Self { max_retry_after: max.into(), ..self }
    }
}

/// Sends failed requests again.
#[derive(Clone, Debug)]
pub struct RetryLayer<P = HttpRetry> {
    config: RetryConfig,
    rules: P,
    budget: SharedRetryBudget,
}

impl RetryLayer {
    /// Retries idempotent HTTP requests.
    pub fn new(config: RetryConfig, budget: SharedRetryBudget) -> Self {
        Self { config, rules: HttpRetry::new(), budget }
    }
}

impl<P> RetryLayer<P> {
    /// Uses other rules: an [`HttpRetry`] with other statuses and methods, or a closure.
    pub fn rules<Q>(self, rules: Q) -> RetryLayer<Q> {
        RetryLayer { config: self.config, rules, budget: self.budget }
    }
}

impl<S, P: Clone> Layer<S> for RetryLayer<P> {
    type Service = RetryService<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        let (rules, budget) = (self.rules.clone(), self.budget.clone());
        RetryService { inner, config: self.config, rules, budget }
    }
}
