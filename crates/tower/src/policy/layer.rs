//! The layer.

use std::fmt;
use std::sync::Arc;

use tidegate_limiter::Limiter;
use tower_layer::Layer;

use super::service::PolicyService;

/// Applies a policy to an HTTP service.
pub struct PolicyLayer<D, F> {
    limiter: Arc<Limiter<D>>,
    peer: F,
}

impl<D, F> PolicyLayer<D, F> {
    /// `peer` finds the address at the other end of the connection: `Fn(&Request) -> Option<IpAddr>`. Requests without one
    /// count as one client.
    pub fn new(limiter: Arc<Limiter<D>>, peer: F) -> Self {
        Self { limiter, peer }
    }
}

impl<D, F: Clone> Clone for PolicyLayer<D, F> {
    fn clone(&self) -> Self {
        Self { limiter: Arc::clone(&self.limiter), peer: self.peer.clone() }
    }
}

impl<D, F> fmt::Debug for PolicyLayer<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyLayer").finish_non_exhaustive()
    }
}

impl<S, D, F: Clone> Layer<S> for PolicyLayer<D, F> {
    type Service = PolicyService<S, D, F>;

    fn layer(&self, inner: S) -> Self::Service {
        PolicyService { inner, limiter: Arc::clone(&self.limiter), peer: self.peer.clone() }
    }
}
