//! The names of the rate-limit headers, of the header of degraded requests, and of the request id.

use http::header::HeaderName;

pub(crate) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(crate) const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(crate) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(crate) const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
pub(crate) const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(crate) const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
pub(crate) const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// Tells a service that a request exceeds a limit, so that it can respond more cheaply.
pub const DEGRADE: HeaderName = HeaderName::from_static("x-tidegate-degrade");
/// Identifies a request in responses, logs and traces, and for upstreams.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
