//! Rate limits for each client.
//!
//! [`RateLimiter`] is the handle: limits, a store for their counters, and a clock. [`RateLimitLayer`] finds the client of a
//! request with a [`FindClient`], and charges all limits or none. HTTP responses get rate-limit headers, and rejected requests
//! get 429; with [`RejectWithError`] any service can be limited, and a rejection is the error [`RateLimited`].
//!
//! A request that is cancelled while a leaky bucket delays it is refunded, and so is one that a layer between the limits and the
//! handler rejects, if the rate-limit layer knows that: see [`RateLimitLayer::around`].

mod client;
mod error;
mod future;
mod handle;
mod kept_decision;
mod layer;
mod report;
mod respond;
mod respond_grpc;
mod service;

pub use client::{ByAddress, ByHeader, ByKey, ClientKey, FindClient, OneCounter};
pub use error::{RateLimited, RateLimiterError};
pub use future::RateLimitFuture;
pub use handle::{OnStoreFailure, RateLimitRule, RateLimiter};
pub use layer::RateLimitLayer;
pub use report::RateLimitReport;
pub use respond::{RejectWithError, RespondHttp, RespondToLimit};
pub use respond_grpc::RespondGrpc;
pub use service::RateLimitService;
pub use tidegate_core::{Algorithm, Decision, LimitError, Spec, Verdict};
pub use tidegate_store::{MemoryStore, Store, StoreError};
