//! Which calls tell how long the service takes.

use http::Response;
use tidegate_core::{CallEnd, CallOutcome};
use tidegate_headers::grpc_status;

/// Decides whether the latency of a call with this response counts. Closures implement it.
pub trait MeasureLatency<T> {
    /// Whether the service has done usual work for `response`.
    fn counts(&self, response: &T) -> bool;
}

impl<T, F: Fn(&T) -> bool> MeasureLatency<T> for F {
    fn counts(&self, response: &T) -> bool {
        self(response)
    }
}

/// Counts successful HTTP responses and gRPC calls. A failure or rejection is often quicker than the work would have been, and a
/// client may cause it on purpose: usual calls would look slow beside it, and the limit would shrink.
#[derive(Clone, Copy, Debug, Default)]
pub struct SuccessfulResponses;

impl<B> MeasureLatency<Response<B>> for SuccessfulResponses {
    #[inline]
    fn counts(&self, response: &Response<B>) -> bool {
        let status = CallEnd::Status(response.status().as_u16());
        // A gRPC call that fails at once has its status in the head.
        let end = grpc_status(response.headers()).map_or(status, CallEnd::GrpcStatus);
        end.outcome() == CallOutcome::Success
    }
}
