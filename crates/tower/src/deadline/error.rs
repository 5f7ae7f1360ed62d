//! Why a call was not made or not completed.

use thiserror::Error;

/// The deadline of the caller has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the deadline of the request has passed")]
pub struct DeadlineExceeded;
