//! A circuit breaker: calls to a service that fails are rejected at once, until a probe shows that it works again.
//!
//! [`CircuitBreaker`] is the handle: one for each service that can fail on its own, shared by all of its callers.
//! [`BreakerLayer`] rejects calls with [`BreakerOpen`] and records how the others end. Dropping the future of a call cancels
//! the call: it counts as neither success nor failure, and a probe gives its slot back. A call that panics is a failure.
//!
//! A gRPC service reports failures in the trailers of a response with status 200: [`BreakerLayer::grpc`] waits for them.

mod classify;
mod error;
mod future;
mod grpc;
mod handle;
mod layer;
mod service;

pub use classify::{ByError, ByStatus, Classify};
pub use error::BreakerOpen;
pub use future::BreakerFuture;
pub use grpc::{GrpcBreakerBody, GrpcBreakerFuture, GrpcBreakerLayer, GrpcBreakerService};
pub use handle::{BreakerPermit, CircuitBreaker};
pub use layer::BreakerLayer;
pub use service::BreakerService;
pub use tidegate_core::{
    BreakerConfig, BreakerConfigError, BreakerState, BreakerStatus, CallEnd, CallOutcome, SlowCalls,
    WindowLength,
};
