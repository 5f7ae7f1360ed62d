//! A whole policy: the limits, bans, exemptions and identities of a configuration file.
//!
//! [`PolicyLayer`] applies the policy of a [`Limiter`] to an HTTP service, as the gateway does: it
//! responds to rejected and banned clients itself, and adds rate-limit headers to the other responses. Headers that identify a
//! client are removed if the peer may not send them, and the path and the `Host` that the service sees are those that were matched.
//!
//! A permit of a concurrency limit is returned with the head of the response; the gateway keeps it until the end of the body.
//!
//! A rule whose cost is the size of the body takes it from `Content-Length`; a request without it gets 411.

mod check;
mod future;
mod layer;
mod service;

pub use future::PolicyFuture;
pub use layer::PolicyLayer;
pub use service::PolicyService;
pub use tidegate_limiter::Limiter;
pub use tidegate_policy::{ActivePolicy, CompiledPolicy, FileError, Files, NoFiles, Problems, compile};
