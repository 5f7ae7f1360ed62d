//! A clock that follows the paused time of the runtime.

use std::sync::Arc;

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::Clock;
use tokio::time::Instant;

/// Reads the time of the tokio runtime.
#[derive(Debug)]
pub(super) struct RuntimeClock {
    start: Instant,
}

impl RuntimeClock {
    /// Starts at an arbitrary time. Must be called in a runtime.
    pub(super) fn start() -> Arc<dyn Clock> {
        Arc::new(Self { start: Instant::now() })
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        let micros = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        Timestamp::from_secs(1_700_000_000) + TimeSpan::from_micros(micros)
    }
}
