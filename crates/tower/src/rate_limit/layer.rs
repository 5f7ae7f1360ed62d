//! The layer.

use tower_layer::Layer;

use super::handle::RateLimiter;
use super::respond::RespondHttp;
use super::respond_grpc::RespondGrpc;
use super::service::RateLimitService;
use crate::served::{HandlerMark, NothingRefunded, Refunded, ServedService};

/// Limits the requests of each client.
#[derive(Debug)]
pub struct RateLimitLayer<D, K, P = RespondHttp, L = NothingRefunded> {
    limiter: RateLimiter<D>,
    client: K,
    respond: P,
    layers: L,
}

impl<D, K> RateLimitLayer<D, K> {
    /// Limits HTTP requests; `client` finds the client of a request.
    pub fn new(limiter: RateLimiter<D>, client: K) -> Self {
        Self { limiter, client, respond: RespondHttp::default(), layers: NothingRefunded }
    }
}

impl<D, K> RateLimitLayer<D, K, RespondGrpc> {
    /// Limits gRPC calls: those that are rejected end with `RESOURCE_EXHAUSTED`.
    pub fn grpc(limiter: RateLimiter<D>, client: K) -> Self {
        Self { limiter, client, respond: RespondGrpc::default(), layers: NothingRefunded }
    }
}

impl<D, K, P, L> RateLimitLayer<D, K, P, L> {
    /// Responds in another way: with other headers and bodies, or with an error.
    pub fn respond<Q>(self, respond: Q) -> RateLimitLayer<D, K, Q, L> {
        RateLimitLayer { limiter: self.limiter, client: self.client, respond, layers: self.layers }
    }

    /// Applies `layers` between the limits and the handler. A request that they reject ([`is_rejection`](crate::is_rejection))
    /// before the handler was called is refunded. The error alone would not tell: a handler may have worked and return the
    /// rejection of one of its dependencies. A request that a layer responds to is served: those that a fallback responds to,
    /// and those that another rate limit rejects with a response instead of an error
    /// ([`RejectWithError`](super::RejectWithError)).
    ///
    /// ```
    /// # use tidegate_tower::load_shed::{LoadShedLayer, LoadShedder};
    /// # use tidegate_tower::rate_limit::{OneCounter, RateLimitLayer, RateLimiter, Store};
    /// # fn layer<D: Store>(limiter: RateLimiter<D>) {
    /// let layer = RateLimitLayer::new(limiter, OneCounter).around(LoadShedLayer::new(LoadShedder::default()));
    /// # let _ = layer;
    /// # }
    /// ```
    pub fn around<M>(self, layers: M) -> RateLimitLayer<D, K, P, Refunded<M>> {
        let Self { limiter, client, respond, .. } = self;
        RateLimitLayer { limiter, client, respond, layers: Refunded(layers) }
    }
}

impl<D, K: Clone, P: Clone, L: Clone> Clone for RateLimitLayer<D, K, P, L> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            client: self.client.clone(),
            respond: self.respond.clone(),
            layers: self.layers.clone(),
        }
    }
}

impl<S, D, K: Clone, P: Clone> Layer<S> for RateLimitLayer<D, K, P> {
    type Service = RateLimitService<S, D, K, P>;

    fn layer(&self, inner: S) -> Self::Service {
        let Self { limiter, client, respond, .. } = self.clone();
        RateLimitService { inner, limiter, client, respond, mark: None }
    }
}

impl<S, D, K: Clone, P: Clone, L: Layer<ServedService<S>>> Layer<S> for RateLimitLayer<D, K, P, Refunded<L>> {
    type Service = RateLimitService<L::Service, D, K, P>;

    fn layer(&self, handler: S) -> Self::Service {
        let mark = HandlerMark::default();
        let inner = self.layers.0.layer(ServedService::new(handler, mark.clone()));
        let (limiter, client, respond) = (self.limiter.clone(), self.client.clone(), self.respond.clone());
        RateLimitService { inner, limiter, client, respond, mark: Some(mark) }
    }
}
