//! A fallback: another response when a call fails.
//!
//! [`FallbackLayer`] computes a response from the error. [`FallbackServiceLayer`] sends the request to another service, for
//! example a replica or a cache.

mod future;
mod layer;
mod service;

pub use future::{FallbackFuture, FallbackServiceFuture};
pub use layer::{FallbackLayer, FallbackServiceLayer};
pub use service::{FallbackService, SecondaryService};

pub use crate::clone_request::{CloneBody, CloneRequest};
