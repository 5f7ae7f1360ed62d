//! An HTTP client for rate-limited and unreliable APIs.
//!
//! [`Client`] slows down before the server rejects a request, retries what is safe to retry, and protects both sides while a
//! host fails:
//!
//! - **Pacing**: every style of `RateLimit` headers and `Retry-After` is read. A limit with little left is spread over the
//!   rest of its window; a limit with nothing left is not used before its reset. All requests of the client share the pace.
//! - **Retries**: a rejection (429) is retried when the server allows it. Connection errors, timeouts and 500, 502, 503 and
//!   504 are retried with a backoff, but only if the method is idempotent, a POST has an
//!   [idempotency key](ClientRequest::idempotency_key), or the caller [allows it](ClientRequest::allow_replay). All retries
//!   of a host share one budget.
//! - **Isolation**: each host has a circuit breaker and a bulkhead.
//! - **Deadlines**: a [deadline](ClientRequest::deadline) covers all attempts, waits and the body. The server is told what
//!   is left of it.
//! - **Errors** say which policy rejected a request and when to return.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use tidegate_client::{Client, ClientError};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new()?;
//! match client.get("https://api.example/v1/items").deadline(Duration::from_secs(30)).send().await {
//!     Ok(response) => println!("{}: {}", response.status(), response.text().await?),
//!     Err(ClientError::RateLimited { policy, retry_after, .. }) => {
//!         println!("limit {policy:?} is exceeded, retry after {retry_after:?}");
//!     }
//!     Err(error) => return Err(error.into()),
//! }
//!
//! // After a failure other than 429, a POST is not sent again. With a key that the server recognizes, it is.
//! client.post("https://api.example/v1/orders").body("…").idempotency_key(true).send().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Redirects are not followed and bodies are not decompressed. Features: `json` for JSON bodies, `cache` for a response cache
//! in memory.

#![forbid(unsafe_code)]

mod body;
mod builder;
#[cfg(feature = "cache")]
mod cache;
mod call;
mod client;
mod error;
mod host;
mod pace;
mod request;
mod response;
mod table;
#[cfg(test)]
mod tests;
mod transport;
mod watched_io;

pub use body::SendBody;
pub use builder::ClientBuilder;
pub use client::Client;
pub use error::{BoxError, ClientBuildError, ClientError};
pub use request::ClientRequest;
pub use response::{ClientResponse, IncomingBody};
// The types of the builder's arguments.
pub use tidegate_core::{BreakerConfig, Jitter, Ratio, RetryBudget, SlowCalls, TimeSpan, WindowLength};
pub use tidegate_store::{Clock, SystemClock};
pub use tidegate_tower::bulkhead::BulkheadConfig;
pub use tidegate_tower::deadline::Deadline;
