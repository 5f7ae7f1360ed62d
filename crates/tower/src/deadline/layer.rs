//! The layers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::TimeSpan;
use tidegate_store::Clock;
use tower_layer::Layer;

use super::service::{DeadlineService, OutgoingDeadlineService};
use crate::clock::system_clock;
use crate::ready::ReadyWait;

/// Enforces the deadlines of incoming requests.
#[derive(Clone)]
pub struct DeadlineLayer {
    max: Option<TimeSpan>,
    clock: Arc<dyn Clock>,
}

impl DeadlineLayer {
    /// Requests without a deadline have unlimited time.
    pub fn new() -> Self {
        Self { max: None, clock: system_clock() }
    }

    /// Every request has at most this long, whatever its headers say.
    pub fn at_most(self, max: impl Into<Duration>) -> Self {
        Self { max: Some(max.into().into()), ..self }
    }

    /// Uses another clock.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }
}

impl Default for DeadlineLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for DeadlineLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadlineLayer").field("max", &self.max).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = DeadlineService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let clock = Arc::clone(&self.clock);
        DeadlineService { inner, max: self.max, clock, ready_wait: ReadyWait::default() }
    }
}

/// Sends the time that remains with outgoing requests. The deadline is that of the request's extension or of the current task.
#[derive(Clone)]
pub struct OutgoingDeadlineLayer {
    clock: Arc<dyn Clock>,
}

impl OutgoingDeadlineLayer {
    /// Requests without a deadline are sent as they are.
    pub fn new() -> Self {
        Self { clock: system_clock() }
    }

    /// Uses another clock: the one by which the deadlines were made.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock }
    }
}

impl Default for OutgoingDeadlineLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for OutgoingDeadlineLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingDeadlineLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for OutgoingDeadlineLayer {
    type Service = OutgoingDeadlineService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        OutgoingDeadlineService { inner, clock: Arc::clone(&self.clock), ready_wait: ReadyWait::default() }
    }
}
