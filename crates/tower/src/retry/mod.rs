//! Retries within a budget.
//!
//! [`SharedRetryBudget`] is the handle: one for each service, shared by all of its callers.

mod handle;

pub use handle::{RetryPermit, SharedRetryBudget};
