//! What the HTTP connections of a worker share.

use std::cell::RefCell;
use std::sync::Arc;

use tidegate_headers::HeaderValueCache;
use tidegate_policy::{PooledScratch, ScratchPool};
use tidegate_store::{Clock, to_system_time};

use crate::connection_events::AnswerDeferral;
use crate::reservations::ReservationTable;

/// The most buffers of connections that are kept. Unless the store is remote, one is enough.
const MAX_BUFFERS: usize = 4;
/// The most bytes that are read at once.
const READ_LENGTH: usize = 16 << 10;

/// The state of a worker for its HTTP connections.
#[derive(Debug)]
pub(crate) struct HttpState {
    pub(super) header_values: RefCell<HeaderValueCache>,
    pub(super) reservations: Arc<ReservationTable>,
    scratches: ScratchPool,
    buffers: RefCell<Vec<ConnectionBuffers>>,
    date: RefCell<CachedDate>,
    pub(super) deferral: AnswerDeferral,
}

/// The buffers of a connection while its requests are answered.
#[derive(Debug)]
pub(super) struct ConnectionBuffers {
    pub(super) read: Box<[u8]>,
    pub(super) output: Vec<u8>,
}

/// The date of responses, which changes once a second.
#[derive(Debug, Default)]
struct CachedDate {
    second: u64,
    text: String,
}

impl HttpState {
    pub(crate) fn new(reservations: Arc<ReservationTable>) -> Self {
        Self {
            header_values: RefCell::default(),
            reservations,
            scratches: ScratchPool::default(),
            buffers: RefCell::default(),
            date: RefCell::default(),
            deferral: AnswerDeferral::default(),
        }
    }

    /// Takes the buffers of a connection from the pool.
    pub(super) fn take_buffers(&self) -> ConnectionBuffers {
        let kept = self.buffers.borrow_mut().pop();
        kept.unwrap_or_else(|| ConnectionBuffers { read: vec![0; READ_LENGTH].into(), output: Vec::new() })
    }

    /// Returns the buffers of a connection to the pool.
    pub(super) fn put_back(&self, mut buffers: ConnectionBuffers) {
        let mut pool = self.buffers.borrow_mut();
        if pool.len() < MAX_BUFFERS {
            buffers.output.clear();
            buffers.output.shrink_to(READ_LENGTH);
            pool.push(buffers);
        }
    }

    /// Calls `write` with the value of the header `Date`: the wall time, read once for each second of `now`. The time of decisions
    /// would be wrong for as long as the process runs if the wall clock is set after its start.
    pub(super) fn with_date(&self, clock: &dyn Clock, write: impl FnOnce(&[u8])) {
        let mut date = self.date.borrow_mut();
        let second = clock.now().as_micros() / 1_000_000;
        if date.second != second || date.text.is_empty() {
            *date = CachedDate { second, text: httpdate::fmt_http_date(to_system_time(clock.wall_time())) };
        }
        write(date.text.as_bytes());
    }

    /// Takes the buffers for a decision from the pool.
    pub(super) fn scratch(&self) -> PooledScratch<'_> {
        self.scratches.take()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Timestamp;
    use tidegate_store::ManualClock;

    use super::*;

    #[test]
    fn date_changes_with_the_second() {
        let state = HttpState::new(Arc::default());
        for (micros, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (1_794_823_199_999_999, "Mon, 16 Nov 2026 09:59:59 GMT"),
            (1_794_823_200_000_000, "Mon, 16 Nov 2026 10:00:00 GMT"),
        ] {
            state.with_date(&ManualClock::at(Timestamp::from_micros(micros)), |date| {
                assert_eq!(String::from_utf8_lossy(date), expected);
            });
        }
    }

    /// A clock whose wall time was set after its start.
    #[derive(Debug)]
    struct SteppedClock;

    impl Clock for SteppedClock {
        fn now(&self) -> Timestamp {
            Timestamp::ZERO
        }

        fn wall_time(&self) -> Timestamp {
            Timestamp::from_secs(1_794_823_200)
        }
    }

    #[test]
    fn date_is_the_wall_time_after_a_step() {
        HttpState::new(Arc::default()).with_date(&SteppedClock, |date| {
            assert_eq!(String::from_utf8_lossy(date), "Mon, 16 Nov 2026 10:00:00 GMT");
        });
    }
}
