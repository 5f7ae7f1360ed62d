//! Why a call was not made.

use thiserror::Error;
use tidegate_core::Criticality;

/// The service is overloaded: requests of this importance are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the service is overloaded: requests of criticality {} are rejected", criticality.name())]
pub struct Overload {
    /// The importance of the request.
    pub criticality: Criticality,
}
