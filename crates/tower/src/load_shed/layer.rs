//! The layer.

use http::Request;
use tidegate_core::Criticality;
use tower_layer::Layer;

use super::handle::{LoadShedder, criticality};
use super::measure::SuccessfulResponses;
use super::service::LoadShedService;

/// Finds the importance of a request. Closures implement it.
pub trait FindCriticality<R> {
    /// The importance of `request`.
    fn criticality(&self, request: &R) -> Criticality;
}

impl<R, F: Fn(&R) -> Criticality> FindCriticality<R> for F {
    fn criticality(&self, request: &R) -> Criticality {
        self(request)
    }
}

/// Reads the header `X-Criticality` of HTTP requests. By default it may only make a request less important than one without the
/// header: otherwise every client could put its requests before those of all others.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByCriticalityHeader {
    is_trusted: bool,
}

impl ByCriticalityHeader {
    /// Believes every value: for services that only trusted clients can reach, or behind a proxy that sets the header.
    pub fn trusted() -> Self {
        Self { is_trusted: true }
    }
}

impl<B> FindCriticality<Request<B>> for ByCriticalityHeader {
    fn criticality(&self, request: &Request<B>) -> Criticality {
        let stated = criticality(request.headers());
        if self.is_trusted { stated } else { stated.min(Criticality::default()) }
    }
}

/// Rejects requests when the service is overloaded, less important ones first.
#[derive(Clone, Debug)]
pub struct LoadShedLayer<C = ByCriticalityHeader, M = SuccessfulResponses> {
    shedder: LoadShedder,
    find: C,
    measure: M,
}

impl LoadShedLayer {
    /// Reads the importance of HTTP requests from `X-Criticality`, as far as it makes them [less
    /// important](ByCriticalityHeader).
    pub fn new(shedder: LoadShedder) -> Self {
        Self { shedder, find: ByCriticalityHeader::default(), measure: SuccessfulResponses }
    }
}

impl<C, M> LoadShedLayer<C, M> {
    /// Finds the importance of requests in another way.
    pub fn criticality<D>(self, find: D) -> LoadShedLayer<D, M> {
        LoadShedLayer { shedder: self.shedder, find, measure: self.measure }
    }

    /// Measures the latency of other responses: of services that are not HTTP, `|_: &Response| true`.
    pub fn measure<N>(self, measure: N) -> LoadShedLayer<C, N> {
        LoadShedLayer { shedder: self.shedder, find: self.find, measure }
    }
}

impl<S, C: Clone, M: Clone> Layer<S> for LoadShedLayer<C, M> {
    type Service = LoadShedService<S, C, M>;

    fn layer(&self, inner: S) -> Self::Service {
        let (shedder, find, measure) = (self.shedder.clone(), self.find.clone(), self.measure.clone());
        LoadShedService { inner, shedder, find, measure }
    }
}
