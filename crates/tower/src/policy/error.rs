//! Why a request was not served, other than by a limit.

use http::uri::InvalidUri;
use thiserror::Error;
use tidegate_policy::{HeaderError, PathError, RequestError};

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
    /// The method or the host is invalid or ambiguous.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The path is ambiguous.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The headers identify more than one client, or a token or an API key is not valid.
    #[error(transparent)]
    Headers(#[from] HeaderError),
    /// The normalized path is not a valid URI.
    #[error(transparent)]
    Uri(#[from] InvalidUri),
}
