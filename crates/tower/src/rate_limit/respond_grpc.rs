//! What happens to the responses of limited gRPC services.

use http::Response;
use tidegate_headers::HeaderStyle;

use super::error::RateLimited;
use super::report::RateLimitReport;
use super::respond::{RespondHttp, RespondToLimit};
use crate::error::LayerError;
use crate::response::grpc_response;

/// Responses get rate-limit headers as metadata; a rejected call ends with `RESOURCE_EXHAUSTED` and the time after which to retry.
#[derive(Clone, Debug, Default)]
pub struct RespondGrpc {
    headers: RespondHttp,
}

impl RespondGrpc {
    /// Writes these headers.
    pub fn new(headers: impl IntoIterator<Item = HeaderStyle>) -> Self {
        Self { headers: RespondHttp::new(headers, tidegate_headers::BodyStyle::Flat) }
    }
}

impl<B: Default> RespondToLimit<Response<B>> for RespondGrpc {
    #[inline]
    fn complete(&self, response: &mut Response<B>, report: RateLimitReport<'_>) {
        self.headers.write(response, report);
    }

    fn reject(&self, rejection: RateLimited, report: RateLimitReport<'_>) -> Result<Response<B>, LayerError> {
        let mut response = grpc_response(&LayerError::new(rejection), self.headers.styles());
        self.headers.write(&mut response, report);
        Ok(response)
    }
}
