//! The layer.

use tower_layer::Layer;

use super::classify::ByStatus;
use super::grpc::GrpcBreakerLayer;
use super::handle::CircuitBreaker;
use super::service::BreakerService;

/// Protects a service with a circuit breaker.
#[derive(Clone, Debug)]
pub struct BreakerLayer<C = ByStatus> {
    breaker: CircuitBreaker,
    classifier: C,
}

impl BreakerLayer {
    /// Classifies HTTP responses by status.
    pub fn new(breaker: CircuitBreaker) -> Self {
        Self { breaker, classifier: ByStatus }
    }

    /// Classifies gRPC calls by the status at the end of their response.
    pub fn grpc(breaker: CircuitBreaker) -> GrpcBreakerLayer {
        GrpcBreakerLayer::new(breaker)
    }
}

impl<C> BreakerLayer<C> {
    /// Uses another classification: [`ByError`](super::ByError), or a closure from a result to its outcome.
    pub fn classify<D>(self, classifier: D) -> BreakerLayer<D> {
        BreakerLayer { breaker: self.breaker, classifier }
    }
}

impl<S, C: Clone> Layer<S> for BreakerLayer<C> {
    type Service = BreakerService<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        let (breaker, classifier) = (self.breaker.clone(), self.classifier.clone());
        BreakerService { inner, breaker, classifier, is_unready: false }
    }
}
