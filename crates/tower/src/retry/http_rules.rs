//! Which HTTP requests are sent again.

use std::sync::Arc;

use http::{Method, Request, Response};
use tidegate_core::{CallOutcome, Timestamp};
use tidegate_headers::AdvertisedLimits;

use super::rules::{RetryAdvice, RetryRules};
use crate::clone_request::{CloneBody, CloneRequest};
use crate::deadline::Deadline;
use crate::error::{LayerError, error_outcome};

/// Sends idempotent HTTP requests again after errors and some statuses, and honours `Retry-After`.
///
/// Errors by which a layer rejected the request and deadlines that have passed are final.
#[derive(Clone, Debug)]
pub struct HttpRetry<C = CloneBody> {
    statuses: Arc<[u16]>,
    methods: Arc<[Method]>,
    copy: C,
}

impl HttpRetry {
    /// The statuses after which a request is sent again, unless others are given.
    pub const STATUSES: [u16; 5] = [429, 500, 502, 503, 504];
    /// The methods that are sent again unless others are given: those that are idempotent by their definition.
    pub const METHODS: [Method; 6] =
        [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE];

    /// Retries [`Self::METHODS`] after errors and [`Self::STATUSES`].
    pub fn new() -> Self {
        Self { statuses: Arc::new(Self::STATUSES), methods: Arc::new(Self::METHODS), copy: CloneBody }
    }
}

impl Default for HttpRetry {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> HttpRetry<C> {
    /// Retries after these statuses.
    pub fn statuses(self, statuses: impl Into<Arc<[u16]>>) -> Self {
        Self { statuses: statuses.into(), ..self }
    }

    /// Retries these methods. With `POST` or `PATCH` among them, the service may do the same work twice.
    pub fn methods(self, methods: impl Into<Arc<[Method]>>) -> Self {
        Self { methods: methods.into(), ..self }
    }

    /// Copies requests in another way, for bodies that are not `Clone`.
    pub fn clone_with<D>(self, copy: D) -> HttpRetry<D> {
        HttpRetry { statuses: self.statuses, methods: self.methods, copy }
    }
}

impl<B, T, C> RetryRules<Request<B>, Response<T>> for HttpRetry<C>
where
    C: CloneRequest<Request<B>>,
{
    fn clone_request(&self, request: &Request<B>) -> Option<Request<B>> {
        if !self.methods.contains(request.method()) {
            return None;
        }
        self.copy.clone_request(request)
    }

    fn advise(
        &self,
        _request: &Request<B>,
        result: Result<&Response<T>, &LayerError>,
        now: Timestamp,
    ) -> RetryAdvice {
        match result {
            Ok(response) if self.statuses.contains(&response.status().as_u16()) => {
                let advertised = AdvertisedLimits::parse(response.headers(), now);
                advertised.retry_after.map_or(RetryAdvice::Retry, RetryAdvice::RetryAfter)
            }
            Err(error) if error_outcome(error) == CallOutcome::Failure => RetryAdvice::Retry,
            Ok(_) | Err(_) => RetryAdvice::Stop,
        }
    }

    fn deadline(&self, request: &Request<B>) -> Option<Deadline> {
        Deadline::of_request(request)
    }
}
