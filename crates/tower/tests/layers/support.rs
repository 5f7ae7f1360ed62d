//! A clock on tokio's time, and requests.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::Clock;
use tidegate_tower::LayerError;
use tokio::time::Instant;

/// The body of test requests.
pub(crate) type Body = Vec<u8>;

/// Follows tokio's clock, so that paused time applies to handles and timers alike.
#[derive(Debug)]
pub(crate) struct TokioClock {
    start: Instant,
}

impl TokioClock {
    pub(crate) const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    #[expect(clippy::disallowed_methods, reason = "this is a clock")]
    pub(crate) fn shared() -> Arc<dyn Clock> {
        Arc::new(Self { start: Instant::now() })
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Self::START + TimeSpan::from(self.start.elapsed())
    }
}

pub(crate) fn get() -> Request<Body> {
    request(Method::GET, "")
}

pub(crate) fn request(method: Method, body: &str) -> Request<Body> {
    let mut request = Request::new(body.into());
    *request.method_mut() = method;
    request
}

pub(crate) fn respond(status: u16) -> Response<Body> {
    let mut response = Response::new(Body::new());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// An error of the inner service.
#[derive(Debug, thiserror::Error)]
#[error("the connection broke")]
pub(crate) struct Broken;

/// The error of another service.
#[derive(Debug, thiserror::Error)]
#[error("the next service failed")]
pub(crate) struct NextFailed(#[source] pub(crate) LayerError);

/// Whether `error` is the cause `E`.
pub(crate) fn is<E: std::error::Error + 'static>(error: &LayerError) -> bool {
    error.is::<E>()
}
