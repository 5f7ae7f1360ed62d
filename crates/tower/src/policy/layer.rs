//! The layer.

use std::fmt;
use std::sync::Arc;

use tidegate_limiter::Limiter;
use tower_layer::Layer;

use super::service::PolicyService;
use crate::address::ConnectInfoAddress;
use crate::served::{HandlerMark, NothingRefunded, Refunded, ServedService};

/// Applies a policy to an HTTP service.
pub struct PolicyLayer<D, F, L = NothingRefunded> {
    limiter: Arc<Limiter<D>>,
    peer: F,
    layers: L,
}

impl<D> PolicyLayer<D, ConnectInfoAddress> {
    /// Takes the [address of the connection](ConnectInfoAddress) from the server. The policy says which proxies to trust.
    pub fn connect_info(limiter: Arc<Limiter<D>>) -> Self {
        Self::new(limiter, ConnectInfoAddress)
    }
}

impl<D, F> PolicyLayer<D, F> {
    /// `peer` finds the address at the other end of the connection: `Fn(&Request) -> Option<IpAddr>`. Requests without one
    /// count as one client.
    pub fn new(limiter: Arc<Limiter<D>>, peer: F) -> Self {
        Self { limiter, peer, layers: NothingRefunded }
    }

    /// Applies `layers` between the limits and the handler. A request that they reject ([`is_rejection`](crate::is_rejection))
    /// before the handler was called is refunded.
    pub fn around<L>(self, layers: L) -> PolicyLayer<D, F, Refunded<L>> {
        PolicyLayer { limiter: self.limiter, peer: self.peer, layers: Refunded(layers) }
    }
}

impl<D, F: Clone, L: Clone> Clone for PolicyLayer<D, F, L> {
    fn clone(&self) -> Self {
        Self { limiter: Arc::clone(&self.limiter), peer: self.peer.clone(), layers: self.layers.clone() }
    }
}

impl<D, F, L> fmt::Debug for PolicyLayer<D, F, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyLayer").finish_non_exhaustive()
    }
}

impl<S, D, F: Clone> Layer<S> for PolicyLayer<D, F> {
    type Service = PolicyService<S, D, F>;

    fn layer(&self, inner: S) -> Self::Service {
        PolicyService { inner, limiter: Arc::clone(&self.limiter), peer: self.peer.clone(), mark: None }
    }
}

impl<S, D, F: Clone, L: Layer<ServedService<S>>> Layer<S> for PolicyLayer<D, F, Refunded<L>> {
    type Service = PolicyService<L::Service, D, F>;

    fn layer(&self, handler: S) -> Self::Service {
        let mark = HandlerMark::default();
        let inner = self.layers.0.layer(ServedService::new(handler, mark.clone()));
        PolicyService { inner, limiter: Arc::clone(&self.limiter), peer: self.peer.clone(), mark: Some(mark) }
    }
}
