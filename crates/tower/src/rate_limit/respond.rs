//! What happens to the responses of limited services.

use std::cell::RefCell;

use http::Response;
use smallvec::SmallVec;
use tidegate_headers::{
    BodyStyle, HeaderStyle, HeaderValueCache, HeaderWriter, RateLimitHeaders, is_rejected_by_upstream,
};

use super::error::RateLimited;
use super::report::RateLimitReport;
use crate::error::LayerError;
use crate::response::rate_limited_response;

/// Completes the responses of a limited service.
pub trait RespondToLimit<T> {
    /// Whether [`complete`](Self::complete) is called. If not, the layer keeps less for the time of a call.
    const COMPLETES: bool = true;

    /// Adds what clients are told about the limits to the response of an admitted request.
    fn complete(&self, response: &mut T, report: RateLimitReport<'_>);

    /// The result of a rejected request.
    fn reject(&self, rejection: RateLimited, report: RateLimitReport<'_>) -> Result<T, LayerError>;
}

/// A rejection is the error [`RateLimited`]; responses are not changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct RejectWithError;

impl<T> RespondToLimit<T> for RejectWithError {
    const COMPLETES: bool = false;

    fn complete(&self, _response: &mut T, _report: RateLimitReport<'_>) {}

    fn reject(&self, rejection: RateLimited, _report: RateLimitReport<'_>) -> Result<T, LayerError> {
        Err(LayerError::new(rejection))
    }
}

/// Responses get rate-limit headers; a rejection is a response with 429, `Retry-After` and a body.
#[derive(Clone, Debug)]
pub struct RespondHttp {
    /// Inline, because it is cloned for each request.
    headers: SmallVec<[HeaderStyle; 8]>,
    body: BodyStyle,
}

impl RespondHttp {
    /// Writes these headers and bodies.
    pub fn new(headers: impl IntoIterator<Item = HeaderStyle>, body: BodyStyle) -> Self {
        Self { headers: headers.into_iter().collect(), body }
    }

    /// The styles of the headers.
    pub(super) fn styles(&self) -> &[HeaderStyle] {
        &self.headers
    }

    pub(super) fn write<B>(&self, response: &mut Response<B>, report: RateLimitReport<'_>) {
        thread_local! {
            static CACHE: RefCell<HeaderValueCache> = RefCell::default();
        }
        if self.headers.is_empty() {
            return;
        }
        let limits = report.limits();
        let Some(primary) = limits.get(report.primary(&limits)) else { return };
        let mut headers = RateLimitHeaders::default();
        CACHE.with_borrow_mut(|cache| {
            let mut writer = HeaderWriter { styles: &self.headers, cache };
            writer.write_limits(&mut headers, report.decision.at, primary, &limits);
        });
        headers.insert_into(response.headers_mut());
    }
}

impl Default for RespondHttp {
    /// `X-RateLimit-…` and `RateLimit` headers, flat bodies.
    fn default() -> Self {
        Self::new([HeaderStyle::XRateLimit, HeaderStyle::RateLimit], BodyStyle::Flat)
    }
}

impl<B: From<Vec<u8>>> RespondToLimit<Response<B>> for RespondHttp {
    #[inline]
    fn complete(&self, response: &mut Response<B>, report: RateLimitReport<'_>) {
        // A service that limits requests itself knows better when to retry.
        if !is_rejected_by_upstream(response.status(), response.headers()) {
            self.write(response, report);
        }
    }

    fn reject(&self, rejection: RateLimited, report: RateLimitReport<'_>) -> Result<Response<B>, LayerError> {
        let mut response = rate_limited_response(&rejection, self.body, &self.headers);
        self.write(&mut response, report);
        Ok(response)
    }
}
