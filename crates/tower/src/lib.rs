//! Middleware that keeps a service available when its dependencies fail.
//!
//! Each pattern is a module with a feature of the same name; the feature `full` has all of them but `policy`. A *handle* holds
//! the shared state and gives out permits that return what they hold when they are dropped; a tower `Layer` is a thin wrapper
//! around it. Handles can be used without tower. The state machines themselves are in [`tidegate_core`].
//!
//! | module | handle | what it does | error |
//! |---|---|---|---|
//! | `rate_limit` | `RateLimiter` | limits the requests of each client | `RateLimited` (or a response with 429) |
//! | `load_shed` | `LoadShedder` | rejects less important requests when the service becomes slow | `Overload` |
//! | `bulkhead` | `Bulkhead` | bounds the calls in flight, with a bounded queue | `BulkheadFull` |
//! | `thread_pool` | `ThreadPool` | runs blocking work in its own threads | `ThreadPoolFull`, `ThreadPoolPanic` |
//! | `retry` | `SharedRetryBudget` | sends failed requests again, within a budget | |
//! | `breaker` | `CircuitBreaker` | rejects calls to a service that fails | `BreakerOpen` |
//! | `timeout` | | bounds each attempt | `AttemptTimeout` |
//! | `deadline` | `Deadline` | bounds all of the work for a request, across services | `DeadlineExceeded` |
//! | `fallback` | | responds when a call fails | |
//! | `policy` | `Limiter` | applies a whole policy file | (responses) |
//!
//! # Order
//!
//! The recommended order, outermost layer first. A service usually has the first half around its handlers, and the second half
//! around the client of each dependency.
//!
//! 1. errors to responses: [`into_response`], or [`GrpcErrorLayer`] in a tonic server
//! 2. `deadline`: everything below knows how much time is left, and is cancelled when it is over
//! 3. `rate_limit`: rejected clients cost nothing further. What the layers given to `around` reject is refunded
//! 4. `load_shed`: measures the latency of everything below
//! 5. `fallback`: replaces the errors of everything below
//! 6. `bulkhead`: a call keeps its place during retries, so retries do not add load
//! 7. `retry`: outside of the breaker, so that the breaker sees each attempt
//! 8. `breaker`: outside of the timeout, so that a timeout counts as a failure
//! 9. `timeout`: bounds one attempt
//! 10. `deadline` of outgoing requests: writes the time that remains at that moment
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use http::{Request, Response};
//! use tidegate_core::{AdaptiveConfig, BreakerConfig, TimeSpan};
//! use tidegate_store::MemoryStore;
//! use tidegate_tower::BoxError;
//! use tidegate_tower::breaker::{BreakerLayer, CircuitBreaker};
//! use tidegate_tower::bulkhead::{Bulkhead, BulkheadConfig, BulkheadLayer};
//! use tidegate_tower::deadline::{DeadlineLayer, OutgoingDeadlineLayer};
//! use tidegate_tower::load_shed::{LoadShedLayer, LoadShedder};
//! use tidegate_tower::rate_limit::{OneCounter, RateLimitLayer, RateLimitRule, RateLimiter};
//! use tidegate_tower::retry::{RetryConfig, RetryLayer, SharedRetryBudget};
//! use tidegate_tower::timeout::TimeoutLayer;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let rules = vec![RateLimitRule::per_window("default", 100, TimeSpan::from_secs(60))?];
//! let store = Arc::new(MemoryStore::with_cap(MemoryStore::cap_for(100_000)));
//! let service = ServiceBuilder::new()
//!     .layer(DeadlineLayer::new().at_most(Duration::from_secs(30)))
//!     .layer(RateLimitLayer::new(RateLimiter::new(rules, store)?, OneCounter))
//!     .layer(LoadShedLayer::new(LoadShedder::new(AdaptiveConfig::default())?))
//!     .layer(BulkheadLayer::new(Bulkhead::new(BulkheadConfig::new(50).queue(20, Duration::from_millis(500)))))
//!     .layer(RetryLayer::new(RetryConfig::default(), SharedRetryBudget::default()))
//!     .layer(BreakerLayer::new(CircuitBreaker::new(BreakerConfig::default())?))
//!     .layer(TimeoutLayer::new(Duration::from_secs(5)))
//!     .layer(OutgoingDeadlineLayer::new())
//!     .service_fn(|request: Request<Vec<u8>>| async move {
//!         assert!(request.headers().contains_key("x-request-deadline-ms"));
//!         Ok::<_, BoxError>(Response::new(b"hello".to_vec()))
//!     });
//!
//! let response = service.oneshot(Request::new(Vec::new())).await?;
//! assert_eq!(response.headers()["X-RateLimit-Remaining"], "99");
//! # Ok(())
//! # }
//! ```
//!
//! # Conventions
//!
//! - The error of every layer is a [`BoxError`]: one small struct for each cause, or the error of the inner service as it was.
//!   [`find_cause`] finds a cause, [`is_rejection`] tells whether the service was called at all.
//! - Every layer is cancel-safe: dropping a future returns its permit, its place in a queue, the slot of a probe and a retry
//!   that was not sent.
//! - A layer sees a request only when the inner service is ready. `timeout`, and `deadline` with `at_most` or with a deadline of
//!   the task, bound that wait as well: afterwards they fail the next call without making it, so a call may take the time twice.
//!   The other layers wait as long as the inner service makes them wait, except that an open breaker rejects at once. An error of
//!   `poll_ready` is a failure for the breaker.
//! - A call that waits (delayed by `rate_limit` or `policy`, queued by `bulkhead`, undecided by a remote store) keeps the service
//!   that was ready for it, with whatever that has reserved. So one client's delayed calls could occupy all permits of tower's
//!   `ConcurrencyLimit` further in: use `bulkhead` there, which gives out its permits when it is called.
//! - Layers call only services that are ready. Futures are named types; only calls that wait for a permit or for a remote store
//!   allocate.
//! - Durations are measured with a [`Clock`](tidegate_store::Clock), by default the [`system_clock`]; timers are those of
//!   tokio.

#![forbid(unsafe_code)]

#[cfg(feature = "breaker")]
pub mod breaker;
#[cfg(feature = "bulkhead")]
pub mod bulkhead;
mod clock;
#[cfg(feature = "deadline")]
pub mod deadline;
mod error;
#[cfg(feature = "fallback")]
pub mod fallback;
mod grpc;
#[cfg(feature = "load_shed")]
pub mod load_shed;
#[cfg(feature = "policy")]
pub mod policy;
#[cfg(feature = "rate_limit")]
pub mod rate_limit;
#[cfg(any(feature = "deadline", feature = "timeout"))]
mod ready;
mod response;
#[cfg(feature = "retry")]
pub mod retry;
#[cfg(any(feature = "policy", feature = "rate_limit"))]
mod served;
#[cfg(feature = "thread_pool")]
pub mod thread_pool;
#[cfg(feature = "timeout")]
pub mod timeout;

pub use clock::system_clock;
pub use error::{BoxError, error_outcome, find_cause, is_rejection};
pub use grpc::{GrpcErrorFuture, GrpcErrorLayer, GrpcErrorService};
pub use response::into_response;
#[cfg(any(feature = "policy", feature = "rate_limit"))]
pub use served::{NothingRefunded, Refunded, ServedService};
