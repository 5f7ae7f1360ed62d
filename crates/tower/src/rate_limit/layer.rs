//! The layer.

use tower_layer::Layer;

use super::handle::RateLimiter;
use super::respond::RespondHttp;
use super::service::RateLimitService;

/// Limits the requests of each client.
#[derive(Debug)]
pub struct RateLimitLayer<D, K, P = RespondHttp> {
    limiter: RateLimiter<D>,
    client: K,
    respond: P,
}

impl<D, K> RateLimitLayer<D, K> {
    /// Limits HTTP requests; `client` finds the client of a request.
    pub fn new(limiter: RateLimiter<D>, client: K) -> Self {
        Self { limiter, client, respond: RespondHttp::default() }
    }
}

impl<D, K, P> RateLimitLayer<D, K, P> {
    /// Responds in another way: with other headers and bodies, or with an error.
    pub fn respond<Q>(self, respond: Q) -> RateLimitLayer<D, K, Q> {
        RateLimitLayer { limiter: self.limiter, client: self.client, respond }
    }
}

impl<D, K: Clone, P: Clone> Clone for RateLimitLayer<D, K, P> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), client: self.client.clone(), respond: self.respond.clone() }
    }
}

impl<S, D, K: Clone, P: Clone> Layer<S> for RateLimitLayer<D, K, P> {
    type Service = RateLimitService<S, D, K, P>;

    fn layer(&self, inner: S) -> Self::Service {
        let Self { limiter, client, respond } = self.clone();
        RateLimitService { inner, limiter, client, respond }
    }
}
