//! Retries within a budget.
//!
//! [`SharedRetryBudget`] is the handle: one for each service, shared by all of its callers. [`RetryLayer`] sends a request
//! again if its [`RetryRules`] advise it, attempts are left, the wait ends before the deadline, and the budget has a retry
//! left. A retry that is cancelled before it is sent returns to the budget.
//!
//! A request is sent again as a whole: as the clone that was made before the first attempt. A request that cannot be cloned is
//! sent once.

mod future;
mod handle;
mod http_rules;
mod layer;
mod rules;
mod service;

pub use future::RetryFuture;
pub use handle::{RetryPermit, SharedRetryBudget};
pub use http_rules::HttpRetry;
pub use layer::{RetryConfig, RetryLayer};
pub use rules::{RetryAdvice, RetryRules};
pub use service::RetryService;
pub use tidegate_core::{Backoff, BackoffError, Jitter, RetryBudget};

pub use crate::clone_request::{CloneBody, CloneRequest};
