//! The calls that a failure rate is computed from: those of the last moments, or the last calls.

use alloc::boxed::Box;

use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::ratio::Ratio;
use super::slots::{SlotCounts, TimeSlot};
use crate::time::{TimeSpan, Timestamp};

/// A time window has this many slots; the oldest leaves as a whole.
const TIME_SLOTS: u64 = 10;
const RING_SLOTS: usize = 16;

/// Which calls a rate is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowLength {
    /// The calls of the last time span, which moves in tenths of its length.
    Time(TimeSpan),
    /// The last calls.
    Calls(u32),
}

/// Where a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowProgress {
    /// Calls in the window.
    pub calls: u64,
    /// The failed or the slow ones, whichever are more.
    pub bad: u64,
    /// Grows by [`Self::STEPS`] while the window passes once; starts again when the window is cleared.
    pub step: u64,
}

impl WindowProgress {
    /// The steps of one window.
    pub const STEPS: u32 = 4;
}

/// What is counted of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallRecord {
    pub(super) has_failed: bool,
    pub(super) is_slow: bool,
}

/// The counts of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallCounts {
    pub(super) calls: u64,
    pub(super) failures: u64,
    pub(super) slow: u64,
}

impl CallCounts {
    pub(super) fn reaches(&self, failure_rate: Option<Ratio>, slow_rate: Option<Ratio>) -> bool {
        failure_rate.is_some_and(|rate| rate.is_reached_by(self.failures, self.calls))
            || slow_rate.is_some_and(|rate| rate.is_reached_by(self.slow, self.calls))
    }
}

/// Counts the calls of a window.
#[derive(Debug)]
pub(super) enum CallWindow {
    Time(Box<TimeWindow>),
    Calls(CountWindow),
}

impl CallWindow {
    pub(super) fn new(length: WindowLength) -> Self {
        match length {
            WindowLength::Time(span) => Self::Time(Box::new(TimeWindow::new(span))),
            WindowLength::Calls(calls) => Self::Calls(CountWindow::new(calls)),
        }
    }

    pub(super) fn add(&self, call: CallRecord, now: Timestamp) {
        match self {
            Self::Time(window) => window.add(call, now),
            Self::Calls(window) => window.add(call),
        }
    }

    pub(super) fn counts(&self, now: Timestamp) -> CallCounts {
        match self {
            Self::Time(window) => window.counts(now),
            Self::Calls(window) => window.counts(),
        }
    }

    pub(super) fn progress(&self, now: Timestamp) -> WindowProgress {
        let (position, length) = match self {
            Self::Time(window) => (now.as_micros(), window.micros_per_slot.saturating_mul(TIME_SLOTS)),
            Self::Calls(window) => (window.next.load(Ordering::Acquire), window.length()),
        };
        let step =
            position.checked_div(length.div_ceil(u64::from(WindowProgress::STEPS))).unwrap_or_default();
        let CallCounts { calls, failures, slow } = self.counts(now);
        WindowProgress { calls, bad: failures.max(slow), step }
    }

    /// Forgets all calls. A call that is added at the same moment may stay.
    pub(super) fn clear(&self) {
        match self {
            Self::Time(window) => window.slots.iter().chain(&window.slow).for_each(TimeSlot::clear),
            Self::Calls(window) => window.clear(),
        }
    }
}

#[derive(Debug)]
pub(super) struct TimeWindow {
    micros_per_slot: u64,
    /// Calls, and the failed ones.
    slots: [TimeSlot; RING_SLOTS],
    /// Slow calls, as the second count.
    slow: [TimeSlot; RING_SLOTS],
}

impl TimeWindow {
    fn new(span: TimeSpan) -> Self {
        Self {
            micros_per_slot: span.as_micros().div_ceil(TIME_SLOTS).max(1),
            slots: core::array::from_fn(|_| TimeSlot::default()),
            slow: core::array::from_fn(|_| TimeSlot::default()),
        }
    }

    fn number(&self, now: Timestamp) -> u64 {
        now.as_micros().checked_div(self.micros_per_slot).unwrap_or_default()
    }

    fn add(&self, call: CallRecord, now: Timestamp) {
        let number = self.number(now);
        let counted = if call.has_failed { SlotCounts::BOTH } else { SlotCounts::FIRST };
        slot(&self.slots, number).add(number, counted);
        if call.is_slow {
            slot(&self.slow, number).add(number, SlotCounts::SECOND);
        }
    }

    fn counts(&self, now: Timestamp) -> CallCounts {
        let last = self.number(now);
        let first = last.saturating_sub(TIME_SLOTS.saturating_sub(1));
        (first..=last).fold(CallCounts::default(), |sum, number| {
            let counts = slot(&self.slots, number).counts(number);
            CallCounts {
                calls: sum.calls.saturating_add(counts.first),
                failures: sum.failures.saturating_add(counts.second),
                slow: sum.slow.saturating_add(slot(&self.slow, number).counts(number).second),
            }
        })
    }
}

#[expect(clippy::indexing_slicing, reason = "the remainder is below the length")]
fn slot(ring: &[TimeSlot; RING_SLOTS], number: u64) -> &TimeSlot {
    &ring[usize::try_from(number).unwrap_or_default() % RING_SLOTS]
}

const FAILED: u32 = 1;
const SLOW: u32 = 2;
/// The entry holds a call.
const PRESENT: u32 = 4;

/// The last calls: a ring of entries, and running counts of them.
#[derive(Debug)]
pub(super) struct CountWindow {
    entries: Box<[AtomicU32]>,
    next: AtomicU64,
    /// Failed calls in the upper half, slow calls in the lower one.
    counts: AtomicU64,
}

impl CountWindow {
    const SLOW_BITS: u32 = 32;

    fn new(calls: u32) -> Self {
        Self {
            entries: (0..calls.max(1)).map(|_| AtomicU32::new(0)).collect(),
            next: AtomicU64::new(0),
            counts: AtomicU64::new(0),
        }
    }

    fn length(&self) -> u64 {
        u64::try_from(self.entries.len()).unwrap_or(u64::MAX)
    }

    fn add(&self, call: CallRecord) {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let length = self.length();
        let at = usize::try_from(at.checked_rem(length).unwrap_or_default()).unwrap_or_default();
        let entry = PRESENT | if call.has_failed { FAILED } else { 0 } | if call.is_slow { SLOW } else { 0 };
        if let Some(slot) = self.entries.get(at) {
            let replaced = slot.swap(entry, Ordering::AcqRel);
            // Each entry is added once and removed once, so the sums are exact when no call is being added.
            if weight(replaced) != weight(entry) {
                self.counts.fetch_add(weight(entry).wrapping_sub(weight(replaced)), Ordering::AcqRel);
            }
        }
    }

    fn counts(&self) -> CallCounts {
        let length = self.length();
        let calls = self.next.load(Ordering::Acquire).min(length);
        let counts = self.counts.load(Ordering::Acquire);
        // While an entry is being replaced, a sum can be one below zero for a moment.
        let known = |count: u64| if count > length { 0 } else { count };
        CallCounts {
            calls,
            failures: known(counts >> Self::SLOW_BITS),
            slow: known(counts & u64::from(u32::MAX)),
        }
    }

    fn clear(&self) {
        for slot in &self.entries {
            let replaced = slot.swap(0, Ordering::AcqRel);
            self.counts.fetch_sub(weight(replaced), Ordering::AcqRel);
        }
        self.next.store(0, Ordering::Release);
    }
}

/// What an entry adds to the counts.
const fn weight(entry: u32) -> u64 {
    let failed = if entry & FAILED == 0 { 0 } else { 1 << CountWindow::SLOW_BITS };
    let slow = if entry & SLOW == 0 { 0 } else { 1 };
    failed | slow
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: CallRecord = CallRecord { has_failed: false, is_slow: false };
    const FAILED: CallRecord = CallRecord { has_failed: true, is_slow: false };
    const SLOW: CallRecord = CallRecord { has_failed: false, is_slow: true };
    const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    #[test]
    fn time_window_counts_calls_until_they_are_one_window_old() {
        let window = CallWindow::new(WindowLength::Time(TimeSpan::from_secs(10)));
        for call in [OK, FAILED, SLOW] {
            window.add(call, START);
        }
        window.add(FAILED, START + TimeSpan::from_secs(9));
        let counts = window.counts(START + TimeSpan::from_secs(9));
        assert_eq!(counts, CallCounts { calls: 4, failures: 2, slow: 1 });
        let counts = window.counts(START + TimeSpan::from_secs(10));
        assert_eq!(counts, CallCounts { calls: 1, failures: 1, slow: 0 });
    }

    #[test]
    fn count_window_counts_only_the_last_calls() {
        let window = CallWindow::new(WindowLength::Calls(3));
        for call in [FAILED, FAILED, OK, SLOW] {
            window.add(call, START);
        }
        assert_eq!(window.counts(START), CallCounts { calls: 3, failures: 1, slow: 1 });
        window.clear();
        assert_eq!(window.counts(START), CallCounts::default());
        window.add(FAILED, START);
        assert_eq!(window.counts(START), CallCounts { calls: 1, failures: 1, slow: 0 });
    }

    #[test]
    fn window_passes_in_four_steps() {
        let window = CallWindow::new(WindowLength::Time(TimeSpan::from_secs(10)));
        window.add(FAILED, START);
        let step = |now| window.progress(now).step;
        assert_eq!(window.progress(START).calls, 1);
        assert_eq!(step(START + TimeSpan::from_secs(10)), step(START) + u64::from(WindowProgress::STEPS));
        let window = CallWindow::new(WindowLength::Calls(8));
        for calls in 0..=8 {
            assert_eq!(window.progress(START), WindowProgress { calls, bad: 0, step: calls / 2 });
            window.add(OK, START);
        }
    }

    #[test]
    fn cleared_time_window_is_empty() {
        let window = CallWindow::new(WindowLength::Time(TimeSpan::from_secs(1)));
        window.add(FAILED, START);
        window.clear();
        assert_eq!(window.counts(START), CallCounts::default());
    }
}
