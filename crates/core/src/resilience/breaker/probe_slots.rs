//! The slots of probes in one word: how many are taken, and when the last probe started.
//!
//! In two words, a caller that takes the place of a probe that hangs and one that takes the slot of a probe that has just ended
//! would not see each other, and both would probe.

use super::super::atomic::{AtomicU64, Ordering};
use super::MICROS_PER_MILLI;
use crate::time::{TimeSpan, Timestamp};

/// A probe that has not ended for this long is not waited for: a healthy service practically always responds sooner.
const FIRST_WAIT: TimeSpan = TimeSpan::from_secs(1);
const TAKEN_BITS: u32 = 20;
const TAKEN_MAX: u64 = (1 << TAKEN_BITS) - 1;

/// The probes in flight, of whatever generation.
#[derive(Debug)]
pub(super) struct ProbeSlots(AtomicU64);

impl ProbeSlots {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes one of `slots` for a probe that starts now; one beyond them if the last probe has hung for [`hung_after`], at most
    /// `longest`.
    pub(super) fn try_take(&self, slots: u32, longest: TimeSpan, now: Timestamp) -> bool {
        let take = |word: u64| {
            let (taken, last) = (word & TAKEN_MAX, start_of(word));
            let is_free = taken < u64::from(slots) || now.since(last) >= hung_after(taken, slots, longest);
            (is_free && taken < TAKEN_MAX).then(|| word_of(taken.saturating_add(1), now.max(last)))
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    /// How long after the start of the last probe another one may start, although none has ended.
    pub(super) fn hung_after(&self, slots: u32, longest: TimeSpan) -> TimeSpan {
        hung_after(self.0.load(Ordering::Relaxed) & TAKEN_MAX, slots, longest)
    }

    /// Returns the slot of a probe.
    pub(super) fn release(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// The probes in flight.
    pub(super) fn taken(&self) -> u32 {
        u32::try_from(self.0.load(Ordering::Relaxed) & TAKEN_MAX).unwrap_or(u32::MAX)
    }
}

/// The wait doubles with each probe beyond the slots, so that a service that hangs gets few of them.
fn hung_after(taken: u64, slots: u32, longest: TimeSpan) -> TimeSpan {
    let extra = u32::try_from(taken.saturating_sub(u64::from(slots))).unwrap_or(u32::MAX);
    let wait = FIRST_WAIT.as_micros().saturating_mul(2_u64.saturating_pow(extra));
    TimeSpan::from_micros(wait).min(longest)
}

/// A start is rounded up: no probe is taken for older than it is.
fn word_of(taken: u64, start: Timestamp) -> u64 {
    let millis = start.as_micros().div_ceil(MICROS_PER_MILLI);
    (millis.min(u64::MAX >> TAKEN_BITS) << TAKEN_BITS) | taken
}

fn start_of(word: u64) -> Timestamp {
    Timestamp::from_micros((word >> TAKEN_BITS).saturating_mul(MICROS_PER_MILLI))
}
