//! Why a call was not completed.

use std::time::Duration;

use thiserror::Error;

/// The service did not respond in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the service did not respond within {after:?}")]
pub struct AttemptTimeout {
    /// The timeout.
    pub after: Duration,
}
