//! Why a request failed.

use std::error::Error;
use std::time::Duration;

use http::StatusCode;

/// Any error of a body, a connector or a TLS stack.
pub use tidegate_tower::BoxError;

/// Why a request has no response, or its body cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server rejected the request with 429, or the client did not send it because the server would have.
    #[error("rate limit {} exceeded{}", Named(.policy.as_deref()), RetryHint(*.retry_after))]
    RateLimited {
        /// The policy that rejects the request, if the server named it.
        policy: Option<String>,
        /// When the request may be sent again, if that is known.
        retry_after: Option<Duration>,
        /// Units per window of the policy, if the server told it.
        limit: Option<u64>,
    },
    /// The host has failed too often; requests to it are not sent for a while.
    #[error("circuit breaker of {host} is open{}", RetryHint(*.retry_after))]
    BreakerOpen {
        /// The host.
        host: String,
        /// When the next request may be sent, if that is known.
        retry_after: Option<Duration>,
    },
    /// Too many requests to the host are in progress.
    #[error("{concurrent} requests to {host} are in progress and its queue is full or too slow")]
    BulkheadFull {
        /// The host.
        host: String,
        /// The requests to the host that may be in progress.
        concurrent: usize,
    },
    /// The deadline of the request passed.
    #[error("deadline exceeded")]
    DeadlineExceeded,
    /// An attempt took too long, or its body stalled or took too long.
    #[error("timed out after {after:?}")]
    Timeout {
        /// The timeout.
        after: Duration,
    },
    /// No connection was made: the name is unknown, the host refuses or the TLS handshake failed.
    #[error("cannot connect to {host}: {}", Causes(&**source))]
    Connect {
        /// The host.
        host: String,
        /// The cause.
        source: BoxError,
    },
    /// The connection broke before the head of the response was complete, or the response is invalid.
    #[error("connection to {host} failed before a response: {}", Causes(&**source))]
    ConnectionLost {
        /// The host.
        host: String,
        /// The cause.
        source: BoxError,
    },
    /// The connection broke in the body of the response.
    #[error("cannot read the response body: {}", Causes(&**source))]
    Body {
        /// The cause.
        source: BoxError,
    },
    /// The body of the response is longer than the client accepts.
    #[error("response body exceeds {limit} bytes")]
    BodyTooLarge {
        /// The longest accepted body.
        limit: usize,
    },
    /// The caller's request body failed.
    #[error("cannot read the request body: {}", Causes(&**source))]
    Upload {
        /// The cause.
        source: BoxError,
    },
    /// The URL cannot be requested.
    #[error("invalid URL `{}`: {reason}", .url.escape_debug())]
    InvalidUrl {
        /// The URL, without its query and without credentials.
        url: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A header, the method or the body is invalid.
    #[error("invalid request: {}", Causes(&**source))]
    InvalidRequest {
        /// The cause.
        source: BoxError,
    },
    /// The response body is not the expected JSON.
    #[cfg(feature = "json")]
    #[error("invalid JSON in the response body: {source}")]
    Json {
        /// The cause.
        source: serde_json::Error,
    },
    /// The server responded with an error status.
    #[error("server responded with {status}")]
    Status {
        /// The status.
        status: StatusCode,
    },
    /// The request has no response, or one with 429, and the retry budget of the client allows no further retry.
    #[error("retry budget exhausted: {last}")]
    BudgetExhausted {
        /// The failure that would have been retried.
        last: Box<ClientError>,
    },
}

impl ClientError {
    /// When the request may be sent again, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::BreakerOpen { retry_after, .. } => *retry_after,
            Self::BudgetExhausted { last } => last.retry_after(),
            _ => None,
        }
    }

    /// The policy that rejected the request, if the server named it.
    pub fn policy(&self) -> Option<&str> {
        match self {
            Self::RateLimited { policy, .. } => policy.as_deref(),
            Self::BudgetExhausted { last } => last.policy(),
            _ => None,
        }
    }
}

/// Why a client cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientBuildError {
    /// The retry backoff is invalid.
    #[error("invalid backoff: {0}")]
    Backoff(#[from] tidegate_core::BackoffError),
    /// The breaker is invalid.
    #[error("invalid breaker: {0}")]
    Breaker(#[from] tidegate_core::BreakerConfigError),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// The name of a policy, if it has one.
struct Named<'a>(Option<&'a str>);

impl std::fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(name) => write!(f, "`{}`", name.escape_debug()),
            None => f.write_str("of the server"),
        }
    }
}

/// An error and its sources down to the root cause, each said once. The text of an error of hyper alone names no cause.
struct Causes<'a>(&'a (dyn Error + 'static));

impl std::fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            next = cause.source();
        }
        Ok(())
    }
}

/// When to retry, if that is known.
struct RetryHint(Option<Duration>);

impl std::fmt::Display for RetryHint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(after) => write!(f, "; retry after {after:?}"),
            None => Ok(()),
        }
    }
}
