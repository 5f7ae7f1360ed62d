//! Why a request was not served, other than by a limit.

use thiserror::Error;
use tidegate_policy::RequestError;

/// Why a policy rejects a request, other than by a limit.
#[derive(Debug, Error)]
pub enum PolicyRejection {
    /// The client is banned.
    #[error("the client is banned")]
    Banned,
    /// The store returned no decision.
    #[error("the store returned no decision")]
    NoDecision,
    /// A rule counts the bytes of the body, and the request does not state them.
    #[error("the request has no Content-Length")]
    NoLength,
    /// The request is ambiguous, or has a token or an API key that is not valid.
    #[error(transparent)]
    Request(#[from] RequestError),
}
