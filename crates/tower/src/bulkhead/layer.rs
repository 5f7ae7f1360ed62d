//! The layer.

use tower_layer::Layer;

use super::handle::Bulkhead;
use super::service::BulkheadService;

/// Bounds the calls in flight of a service.
#[derive(Clone, Debug)]
pub struct BulkheadLayer {
    bulkhead: Bulkhead,
}

impl BulkheadLayer {
    /// Services with clones of one bulkhead share its permits.
    pub fn new(bulkhead: Bulkhead) -> Self {
        Self { bulkhead }
    }
}

impl<S> Layer<S> for BulkheadLayer {
    type Service = BulkheadService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BulkheadService { inner, bulkhead: self.bulkhead.clone() }
    }
}
