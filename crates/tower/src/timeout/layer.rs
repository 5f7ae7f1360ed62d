//! The layer.

use std::time::Duration;

use tower_layer::Layer;

use super::service::TimeoutService;
use crate::ready::ReadyWait;

/// Bounds the duration of each call.
#[derive(Clone, Copy, Debug)]
pub struct TimeoutLayer {
    after: Duration,
}

impl TimeoutLayer {
    /// Calls fail after this time.
    pub fn new(after: impl Into<Duration>) -> Self {
        Self { after: after.into() }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = TimeoutService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TimeoutService { inner, after: self.after, ready_wait: ReadyWait::default() }
    }
}
