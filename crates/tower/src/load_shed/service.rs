//! The service.

use std::task::{Context, Poll};

use tower_service::Service;

use super::future::LoadShedFuture;
use super::handle::LoadShedder;
use super::layer::FindCriticality;
use super::measure::MeasureLatency;
use crate::error::{BoxError, LayerError};

/// A service that rejects requests when it is overloaded.
#[derive(Clone, Debug)]
pub struct LoadShedService<S, C, M> {
    pub(super) inner: S,
    pub(super) shedder: LoadShedder,
    pub(super) find: C,
    pub(super) measure: M,
}

impl<S, C, M, R> Service<R> for LoadShedService<S, C, M>
where
    S: Service<R>,
    S::Error: Into<BoxError> + 'static,
    C: FindCriticality<R>,
    M: MeasureLatency<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = LayerError;
    type Future = LoadShedFuture<S::Future, M>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        self.inner.poll_ready(cx).map_err(LayerError::new)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        match self.shedder.try_acquire(self.find.criticality(&request)) {
            Ok(permit) => LoadShedFuture::called(self.inner.call(request), permit, self.measure.clone()),
            Err(overload) => LoadShedFuture::rejected(overload),
        }
    }
}
