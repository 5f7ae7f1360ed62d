//! The order of changes that nodes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Timestamp;
use tidegate_store::Clock;

/// Stamps changes. Each stamp is later than all that this node has made or seen, also if its own clock is behind the clocks of
/// other nodes (a Lamport clock): a change of what is known is never taken for the older one.
#[derive(Debug)]
pub(super) struct ChangeClock {
    clock: Arc<dyn Clock>,
    /// The latest stamp, in microseconds.
    latest: AtomicU64,
}

impl ChangeClock {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, latest: AtomicU64::new(0) }
    }

    /// The time of this node, for what ends at a time.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The stamp of a change that is made now.
    pub(super) fn stamp(&self) -> Timestamp {
        let now = self.clock.now().as_micros();
        let next = |latest: u64| now.max(latest.saturating_add(1));
        let update = |latest| Some(next(latest));
        let before = self.latest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
        Timestamp::from_micros(before.map_or(now, next))
    }

    /// Notes the stamp of a change that this node knows.
    pub(super) fn observe(&self, changed: Timestamp) {
        self.latest.fetch_max(changed.as_micros(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_store::ManualClock;

    use super::*;

    #[test]
    fn stamp_is_later_than_all_known_ones_although_the_clock_is_behind() {
        let at = Timestamp::from_micros;
        let clock = Arc::new(ManualClock::at(at(100)));
        let changes = ChangeClock::new(Arc::clone(&clock) as Arc<dyn Clock>);
        assert_eq!([changes.stamp(), changes.stamp()], [at(100), at(101)]);
        changes.observe(at(500));
        changes.observe(at(300));
        assert_eq!((changes.stamp(), changes.now()), (at(501), at(100)));
        clock.set(at(900));
        assert_eq!(changes.stamp(), at(900));
    }
}
