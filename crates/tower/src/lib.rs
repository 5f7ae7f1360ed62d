//! Middleware that keeps a service available when its dependencies fail.
//!
//! Each pattern is a module with a feature of the same name; the feature `full` has all of them but `policy`. The features `axum` and
//! `tonic` find the addresses of clients in their requests. A *handle* holds
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
//! 1. errors to responses: [`HttpErrorLayer`], or [`GrpcErrorLayer`] in a tonic server
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
//! The page docs/tower.md of the repository shows a rate limit, the full stack, retries of requests with bodies, and a policy with
//! reload.
//!
//! ```
//! use std::time::Duration;
//!
//! use tidegate_tower::HttpErrorLayer;
//! use tidegate_tower::rate_limit::{ByAddress, RateLimitLayer, RateLimiter};
//! use tidegate_tower::timeout::TimeoutLayer;
//!
//! # fn main() -> Result<(), tidegate_tower::BoxError> {
//! // A tuple of layers is a layer; the first one is the outermost.
//! let layers = (
//!     HttpErrorLayer::default(),
//!     RateLimitLayer::new(RateLimiter::in_memory(100, Duration::from_mins(1))?, ByAddress::connect_info()),
//!     TimeoutLayer::new(Duration::from_secs(5)),
//! );
//! # let _ = layers;
//! # Ok(())
//! # }
//! ```
//!
//! # Conventions
//!
//! - The error of every layer is a [`LayerError`]: one small struct for each cause, or the error of the inner service as it was.
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
//! - Durations are measured with a [`Clock`], by default the [`system_clock`]; timers are those of
//!   tokio.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "policy", feature = "rate_limit"))]
mod address;
#[cfg(feature = "breaker")]
pub mod breaker;
#[cfg(feature = "bulkhead")]
pub mod bulkhead;
mod clock;
#[cfg(any(feature = "fallback", feature = "retry"))]
mod clone_request;
#[cfg(feature = "deadline")]
pub mod deadline;
mod error;
mod error_response;
#[cfg(feature = "fallback")]
pub mod fallback;
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

#[cfg(any(feature = "policy", feature = "rate_limit"))]
pub use address::{ConnectInfoAddress, FindAddress, MissingConnectInfo};
pub use clock::system_clock;
pub use error::{BoxError, LayerError, error_outcome, find_cause, is_rejection};
pub use error_response::{
    ErrorResponseFuture, ErrorResponseService, GrpcErrorLayer, HttpErrorLayer, RespondToError,
};
pub use response::into_response;
#[cfg(any(feature = "policy", feature = "rate_limit"))]
pub use served::{NothingRefunded, Refunded, ServedService};
pub use tidegate_core::{Ratio, TimeSpan, Timestamp};
pub use tidegate_headers::{BodyStyle, HeaderStyle};
pub use tidegate_store::{Clock, ManualClock, SystemClock};

/// The code of docs/tower.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tower.md")]
struct TowerPage;
