//! Why a call was not made, and why there is no limiter.

use std::sync::Arc;

use smallvec::SmallVec;
use thiserror::Error;
use tidegate_core::{LimitError, LimitReport, TimeSpan, Timestamp};
use tidegate_store::StoreError;

/// Why limits cannot be applied.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RateLimiterError {
    /// Two limits have the same name, so they would share a counter.
    #[error("two limits are called `{name}`; give each limit a name of its own")]
    DuplicateName {
        /// The name.
        name: Arc<str>,
    },
    /// A limit is invalid.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The store cannot keep these limits.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A rate limit is exceeded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the rate limit `{rule}` is exceeded")]
pub struct RateLimited {
    /// The name of the first limit that rejects the request.
    pub rule: Arc<str>,
    /// When all limits admit the request, if no other is charged meanwhile; `None` if its cost exceeds a limit.
    pub retry_after: Option<TimeSpan>,
    /// When the request was rejected.
    pub at: Timestamp,
    /// The limit as it is announced to clients; its name is `rule`.
    pub(super) report: LimitReport<'static>,
    /// The names of all limits that reject the request.
    pub(super) violated: SmallVec<[Arc<str>; 1]>,
    /// `Retry-After` in seconds, with the jitter of the client.
    pub(super) retry_after_seconds: Option<u64>,
}

impl RateLimited {
    /// The limit that rejects the request, as it is announced to clients.
    pub fn limit(&self) -> LimitReport<'_> {
        LimitReport { name: &self.rule, ..self.report }
    }

    /// The names of all limits that reject the request.
    pub fn violated(&self) -> impl Iterator<Item = &str> {
        self.violated.iter().map(|name| &**name)
    }

    /// `Retry-After` in seconds: rounded up, with a jitter that is always the same for one client.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after_seconds
    }
}
