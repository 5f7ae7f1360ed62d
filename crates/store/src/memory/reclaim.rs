//! Frees the numbers of limits that nothing needs any more, by sweeping the table.
//!
//! A sweep retires every number that no policy and no override pins, visits all lines, one lock at a time, and frees the
//! numbers that no live counter has. On the way it empties slots whose state equals an unused one. A live counter keeps its
//! number, however long its window is.
//!
//! No counter can get a number that is being freed: a thread that writes a number into a slot holds the lock of the slot's
//! line, and has checked under that lock that the number is not retired. If it locked the line before the sweep, the sweep
//! finds the slot. If it locked the line after the sweep, the check finds that the number is retired.
//!
//! The cost is spread over the operations that cause it: once half of all numbers are in use without a pin, every check
//! whose limit has no number sweeps a small part of the table. A policy or an override that finds too few free numbers
//! sweeps the whole table.
//!
//! A sweep also empties the slots of carried limits whose state equals an unused one.

use std::sync::{PoisonError, TryLockError};

use tidegate_core::{Limit, TimeSpan, Timestamp};

use super::cache_line::{LIMITS, SLOTS};
use super::limit_registry::{CARRIED, LimitRegistry, MAX_LIMITS, MAX_UNPINNED};
use super::table::CounterTable;

/// No sweep starts with fewer numbers in use that nothing pins: new limits still get numbers.
const SWEEP_FROM: usize = MAX_UNPINNED;
/// A check whose limit has no number sweeps one part in this many.
const PARTS: usize = if MAX_LIMITS < 4 { 1 } else { MAX_LIMITS / 4 };
/// The next sweep starts after this many assigned numbers, or after this interval.
const MIN_ASSIGNED: usize = MAX_LIMITS / 8;
const MIN_INTERVAL: TimeSpan = TimeSpan::from_secs(1);
/// The smallest number of lines that is worth taking the lock.
const FEWEST_LINES: usize = 64;
/// An expired state is kept for another minute, so that time that goes back by less refills nothing.
const GRACE: TimeSpan = TimeSpan::from_secs(60);

/// The progress of a sweep.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The next line; `None` if no sweep is in progress.
    next: Option<usize>,
    /// The numbers of live counters.
    live: Vec<bool>,
    /// When the last sweep began.
    began: Option<Timestamp>,
}

impl CounterTable {
    /// The number of `limit`; assigns one if it has none. [`CARRIED`] if none is left for a limit that nothing pins.
    #[expect(clippy::inline_always, reason = "a few instructions of every decision")]
    #[inline(always)]
    pub(super) fn number(&self, limit: &Limit, now: Timestamp) -> u16 {
        let presumed = LimitRegistry::presumed_number(limit);
        if self.limits.belongs_to(presumed, limit) { presumed } else { self.find_number(limit, now) }
    }

    #[cold]
    fn find_number(&self, limit: &Limit, now: Timestamp) -> u16 {
        if let Some(number) = self.limits.find(limit) {
            return number;
        }
        // The states of numbered limits use the whole pool, which is not for limits that requests carry.
        if self.limits.has_pinned() && !Self::always_fits_word(limit, now) {
            return self.limits.find_or_revive(limit).unwrap_or(CARRIED);
        }
        // First, so that the sweep does not retire the new number.
        self.reclaim_parts(1, now);
        self.limits.find_or_add(limit).unwrap_or(CARRIED)
    }

    /// Sweeps `parts` of the table, if a sweep is due.
    pub(super) fn reclaim_parts(&self, parts: usize, now: Timestamp) {
        let mut sweep = match self.sweep.try_lock() {
            Ok(sweep) => sweep,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is sweeping.
            Err(TryLockError::WouldBlock) => return,
        };
        if sweep.next.is_none() {
            let (unpinned, assigned) = self.limits.unpinned_and_assigned();
            let long_ago = |began: Timestamp| now < began || now.since(began) >= MIN_INTERVAL;
            let is_due = assigned >= MIN_ASSIGNED || sweep.began.is_none_or(long_ago);
            if parts == 0 || unpinned < SWEEP_FROM || !is_due {
                return;
            }
            self.begin(&mut sweep, now);
        }
        let part = self.line_count().div_ceil(PARTS).max(FEWEST_LINES);
        self.sweep_lines(&mut sweep, part.saturating_mul(parts), now);
    }

    /// Sweeps the whole table. First completes a sweep in progress, because it did not retire the numbers that were pinned
    /// when it began.
    pub(super) fn reclaim_all(&self, now: Timestamp) {
        let mut sweep = self.sweep.lock().unwrap_or_else(PoisonError::into_inner);
        if sweep.next.is_some() {
            self.sweep_lines(&mut sweep, usize::MAX, now);
        }
        self.begin(&mut sweep, now);
        self.sweep_lines(&mut sweep, usize::MAX, now);
    }

    fn begin(&self, sweep: &mut Sweep, now: Timestamp) {
        *sweep = Sweep { next: Some(0), live: vec![false; LIMITS], began: Some(now) };
        self.limits.retire_unpinned();
    }

    fn sweep_lines(&self, sweep: &mut Sweep, most: usize, now: Timestamp) {
        let Some(first) = sweep.next else { return };
        let end = first.saturating_add(most).min(self.line_count());
        for line in first..end {
            self.sweep_line(line, &mut sweep.live, now - GRACE);
        }
        sweep.next = Some(end);
        if end == self.line_count() {
            let is_live = |number: u16| sweep.live[usize::from(number)];
            self.limits.free_retired(is_live, &self.pool.budget, now - GRACE);
            sweep.next = None;
        }
    }

    /// Locks the line even if it has no retired number: see above.
    fn sweep_line(&self, line: usize, live_numbers: &mut [bool], now: Timestamp) {
        let locked = self.line(line).lock();
        for slot in 0..SLOTS {
            let number = locked.tag(slot).limit();
            if number == CARRIED && self.is_fresh(&locked, slot, now) {
                self.clear(&locked, slot);
                continue;
            }
            let is_live = &mut live_numbers[usize::from(number)];
            if *is_live || !self.limits.is_retired(number) {
                continue;
            }
            // Lock the word, so that it does not change while it is checked.
            locked.lock_word(slot);
            if self.is_fresh(&locked, slot, now) {
                self.clear(&locked, slot);
            } else {
                *is_live = true;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
