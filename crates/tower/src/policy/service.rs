//! The service.

use std::fmt;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tidegate_limiter::Limiter;
use tidegate_store::Store;
use tower_service::Service;

use super::check::check;
use super::future::PolicyFuture;
use crate::address::FindAddress;
use crate::error::{BoxError, LayerError};
use crate::served::HandlerMark;

/// An HTTP service under a policy.
pub struct PolicyService<S, D, F> {
    pub(super) inner: S,
    pub(super) limiter: Arc<Limiter<D>>,
    pub(super) peer: F,
    /// Set if the service knows which calls reach the handler.
    pub(super) mark: Option<HandlerMark>,
}

impl<S: Clone, D, F: Clone> Clone for PolicyService<S, D, F> {
    fn clone(&self) -> Self {
        let (peer, mark) = (self.peer.clone(), self.mark.clone());
        Self { inner: self.inner.clone(), limiter: Arc::clone(&self.limiter), peer, mark }
    }
}

impl<S, D, F> fmt::Debug for PolicyService<S, D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyService").finish_non_exhaustive()
    }
}

impl<S, D, F, B, T> Service<Request<B>> for PolicyService<S, D, F>
where
    S: Service<Request<B>, Response = Response<T>> + Clone,
    S::Error: Into<BoxError> + 'static,
    D: Store + 'static,
    F: FindAddress<Request<B>>,
    B: Body + Send + 'static,
    T: From<Vec<u8>> + Send + 'static,
{
    type Response = Response<T>;
    type Error = LayerError;
    type Future = PolicyFuture<S, B, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        self.inner.poll_ready(cx).map_err(LayerError::new)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let peer = match self.peer.address(&request) {
            Ok(peer) => peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            Err(missing) => return PolicyFuture::failed(missing),
        };
        // The future takes the service that is ready; a clone need not be.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        let check = check(Arc::clone(&self.limiter), request, peer);
        PolicyFuture::new(Box::pin(check), ready, self.mark.clone())
    }
}
