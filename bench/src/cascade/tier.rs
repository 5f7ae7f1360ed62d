//! A tier: a server with a number of workers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt};

pub(super) type TierRequest = Request<()>;
pub(super) type TierResponse = Response<()>;
/// What a tier calls, or a tier as its callers see it.
pub(super) type TierService = BoxCloneSyncService<TierRequest, TierResponse, BoxError>;

type BoxResponse<E> = Pin<Box<dyn Future<Output = Result<TierResponse, E>> + Send>>;

/// A server. Requests wait for one of its workers, in the order of their arrival, however long that takes.
#[derive(Clone)]
pub(super) struct Tier {
    workers: Arc<Semaphore>,
    /// How long a worker is busy with a request, besides waiting for the next tier.
    work: Duration,
    next: Option<TierService>,
    hang: Option<Hang>,
}

/// The time in which a tier makes no progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hang {
    pub(super) start: Instant,
    pub(super) end: Instant,
}

impl Tier {
    pub(super) fn new(workers: usize, work: Duration) -> Self {
        Self { workers: Arc::new(Semaphore::new(workers)), work, next: None, hang: None }
    }

    pub(super) fn calls(self, next: TierService) -> Self {
        Self { next: Some(next), ..self }
    }

    pub(super) fn hangs(self, hang: Hang) -> Self {
        Self { hang: Some(hang), ..self }
    }

    async fn serve(self, request: TierRequest) -> Result<TierResponse, BoxError> {
        let _worker = self.workers.acquire().await?;
        sleep(self.work).await;
        if let Some(hang) = self.hang.filter(|hang| Instant::now() >= hang.start) {
            sleep_until(hang.end).await;
        }
        match self.next.filter(|_| needs_bottom(&request)) {
            Some(next) => next.oneshot(request).await,
            None => Ok(Response::new(())),
        }
    }
}

impl Service<TierRequest> for Tier {
    type Response = TierResponse;
    type Error = BoxError;
    type Future = BoxResponse<BoxError>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: TierRequest) -> Self::Future {
        Box::pin(self.clone().serve(request))
    }
}

/// The network between two tiers. The server does not notice that its caller has given up; an error becomes a response.
#[derive(Clone)]
pub(super) struct Remote {
    server: TierService,
    calls: Arc<AtomicU64>,
}

impl Remote {
    /// Counts the calls in `calls`.
    pub(super) fn new(server: TierService, calls: Arc<AtomicU64>) -> Self {
        Self { server, calls }
    }
}

impl Service<TierRequest> for Remote {
    type Response = TierResponse;
    type Error = Infallible;
    type Future = BoxResponse<Infallible>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: TierRequest) -> Self::Future {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let server = self.server.clone();
        let response = tokio::spawn(async move { server.oneshot(request).await });
        Box::pin(async move {
            let unavailable = || {
                let mut response = Response::new(());
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                response
            };
            Ok(response.await.ok().and_then(Result::ok).unwrap_or_else(unavailable))
        })
    }
}

/// The path of requests that need the bottom tier.
pub(super) const NEEDS_BOTTOM: &str = "/orders";

fn needs_bottom(request: &TierRequest) -> bool {
    request.uri().path() == NEEDS_BOTTOM
}
