//! Rate limits for each client.
//!
//! [`RateLimiter`] is the handle: limits, a store for their counters, and a clock. [`RateLimitLayer`] finds the client of a
//! request with a [`FindClient`], and charges all limits or none. HTTP responses get rate-limit headers, and rejected requests
//! get 429; with [`RejectWithError`] any service can be limited, and a rejection is the error [`RateLimited`].
//!
//! A request that an inner layer rejects (see [`is_rejection`](crate::is_rejection)), and one that is cancelled while a leaky
//! bucket delays it, is refunded.

mod client;
mod error;
mod future;
mod handle;
mod kept_decision;
mod layer;
mod report;
mod respond;
mod service;

pub use client::{ByAddress, ByHeader, ClientKey, FindClient, OneCounter};
pub use error::RateLimited;
pub use future::RateLimitFuture;
pub use handle::{OnStoreFailure, RateLimitRule, RateLimiter};
pub use layer::RateLimitLayer;
pub use report::RateLimitReport;
pub use respond::{RejectWithError, RespondHttp, RespondToLimit};
pub use service::RateLimitService;
