//! The store's time as a node knows it between two exchanges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use tidegate_core::{TimeSpan, Timestamp};
use tidegate_store::Clock;

use crate::config::TimeSource;

/// The server's time at the last exchange plus the time elapsed since then by the node's clock. The node's clock measures only
/// durations, so nodes with different clocks agree.
#[derive(Debug)]
pub(super) struct StoreClock {
    clock: Arc<dyn Clock>,
    source: TimeSource,
    /// The server's time minus the node's, in microseconds.
    offset: AtomicI64,
    /// The newest time given out. By the server's clock, the time of decisions does not go back when the offset changes.
    newest: AtomicU64,
    /// The node's time of the last exchange, and of the last attempt.
    exchanged_at: AtomicU64,
    attempted_at: AtomicU64,
    has_exchanged: AtomicBool,
    has_attempted: AtomicBool,
}

impl StoreClock {
    pub(super) fn new(clock: Arc<dyn Clock>, source: TimeSource) -> Self {
        Self {
            clock,
            source,
            offset: AtomicI64::new(0),
            newest: AtomicU64::new(0),
            exchanged_at: AtomicU64::new(0),
            attempted_at: AtomicU64::new(0),
            has_exchanged: AtomicBool::new(false),
            has_attempted: AtomicBool::new(false),
        }
    }

    /// Whether the caller's time counts.
    pub(super) fn is_callers(&self) -> bool {
        self.source == TimeSource::Caller
    }

    /// The node's time, for durations.
    pub(super) fn local(&self, now: Timestamp) -> Timestamp {
        match self.source {
            TimeSource::Server => self.clock.now(),
            TimeSource::Caller => now,
        }
    }

    /// The store's time. Before the first exchange it is unknown, and the node's time takes its place.
    pub(super) fn store_time(&self, now: Timestamp) -> Timestamp {
        if self.is_callers() {
            self.newest.fetch_max(now.as_micros(), Ordering::AcqRel);
            return now;
        }
        if !self.has_exchanged.load(Ordering::Acquire) {
            return self.clock.now();
        }
        let micros = self.clock.now().as_micros().saturating_add_signed(self.offset.load(Ordering::Acquire));
        let newest = self.newest.fetch_max(micros, Ordering::AcqRel);
        Timestamp::from_micros(micros.max(newest))
    }

    /// The newest time given out.
    pub(super) fn newest(&self) -> Timestamp {
        Timestamp::from_micros(self.newest.load(Ordering::Acquire))
    }

    /// Notes that an exchange starts at `local`.
    pub(super) fn note_attempt(&self, local: Timestamp) {
        self.attempted_at.store(local.as_micros(), Ordering::Release);
        self.has_attempted.store(true, Ordering::Release);
    }

    /// Notes an exchange that started at `started` and returned the server's time at `received`, both by the node's clock.
    /// The server's time when the reply arrived was not earlier.
    pub(super) fn note_exchange(&self, started: Timestamp, server: Timestamp, received: Timestamp) {
        let difference = i128::from(server.as_micros()) - i128::from(received.as_micros());
        self.offset.store(i64::try_from(difference).unwrap_or_default(), Ordering::Release);
        self.exchanged_at.fetch_max(started.as_micros(), Ordering::AcqRel);
        self.has_exchanged.store(true, Ordering::Release);
    }

    /// The time since the last exchange; `None` before the first.
    pub(super) fn age(&self, local: Timestamp) -> Option<TimeSpan> {
        let at = Timestamp::from_micros(self.exchanged_at.load(Ordering::Acquire));
        self.has_exchanged.load(Ordering::Acquire).then(|| local.since(at))
    }

    /// The time since the last attempt of an exchange; `None` before the first.
    pub(super) fn since_attempt(&self, local: Timestamp) -> Option<TimeSpan> {
        let at = Timestamp::from_micros(self.attempted_at.load(Ordering::Acquire));
        self.has_attempted.load(Ordering::Acquire).then(|| local.since(at))
    }
}
