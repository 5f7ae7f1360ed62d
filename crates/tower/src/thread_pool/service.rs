//! The service.

use std::task::{Context, Poll};

use tower_service::Service;

use super::future::ThreadPoolFuture;
use super::handle::ThreadPool;
use crate::error::{BoxError, LayerError};

/// A blocking function as a service.
#[derive(Clone, Debug)]
pub struct ThreadPoolService<H> {
    pub(super) handler: H,
    pub(super) pool: ThreadPool,
}

impl<H, R, T, E> Service<R> for ThreadPoolService<H>
where
    H: Fn(R) -> Result<T, E> + Clone + Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
    E: Into<BoxError> + Send + 'static,
{
    type Response = T;
    type Error = LayerError;
    type Future = ThreadPoolFuture<T, E>;

    /// Always ready: a full queue rejects the call.
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let handler = self.handler.clone();
        ThreadPoolFuture::new(self.pool.run(move || handler(request)))
    }
}
