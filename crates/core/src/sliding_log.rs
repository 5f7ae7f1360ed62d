//! `sliding_window_log`: stores the time of every admission, and so is exact.
//!
//! Law: no interval (now − window, now] contains more than `requests`. Rejected requests are not stored, so a key takes
//! at most `requests` entries.

use alloc::collections::VecDeque;

use crate::decision::{Outcome, Verdict};
use crate::limit::{Algorithm, Cost, LimitError, RateAlgorithm, Spec};
use crate::time::{EXACT_MAX, Tick, TimeSpan, Timestamp};

/// The parameters of a sliding window log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    requests: u64,
    window: TimeSpan,
}

/// The times of admitted units, oldest first. The default is an unused key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AdmissionLog {
    /// The newest time of a charge: the log's time never goes back behind it.
    newest_time: Timestamp,
    /// The sum of the units of all entries.
    total_units: u64,
    entries: VecDeque<AdmissionEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AdmissionEntry {
    at: Timestamp,
    units: u64,
}

impl AdmissionLog {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn newest(&self) -> Timestamp {
        self.entries.back().map_or(Timestamp::ZERO, |newest| newest.at)
    }
}

impl SlidingLog {
    /// The window's length.
    pub const fn window(&self) -> TimeSpan {
        self.window
    }

    fn is_inside(&self, entry: &AdmissionEntry, now: Timestamp) -> bool {
        now.since(entry.at) < self.window
    }

    /// The units of the entries that have left the window by `now`.
    fn expired_units(&self, log: &AdmissionLog, now: Timestamp) -> u64 {
        let left = log.entries.iter().take_while(|entry| !self.is_inside(entry, now));
        left.fold(0, |units, entry| units.saturating_add(entry.units))
    }

    /// Removes the entries that have left the window by `now`.
    fn remove_expired(&self, log: &mut AdmissionLog, now: Timestamp) {
        log.newest_time = log.newest_time.max(now);
        let at = log.newest_time;
        while let Some(oldest) = log.entries.pop_front_if(|oldest| !self.is_inside(oldest, at)) {
            log.total_units = log.total_units.saturating_sub(oldest.units);
        }
    }

    /// The first instant at which at least `units` have left the window.
    fn when_expired(&self, log: &AdmissionLog, units: u64) -> Timestamp {
        let mut left = 0_u64;
        let last = log.entries.iter().find(|entry| {
            left = left.saturating_add(entry.units);
            left >= units
        });
        last.map_or(log.newest_time, |entry| entry.at + self.window)
    }
}

impl RateAlgorithm for SlidingLog {
    const ALGORITHM: Algorithm = Algorithm::SlidingLog;
    type State = AdmissionLog;

    fn new(spec: &Spec) -> Result<Self, LimitError> {
        spec.validate()?;
        spec.reject_burst(Self::ALGORITHM)?;
        if spec.requests > EXACT_MAX {
            return Err(spec.not_representable());
        }
        Ok(Self { requests: spec.requests, window: spec.window })
    }

    fn capacity(&self) -> u64 {
        self.requests
    }

    fn tick(&self) -> Tick {
        Tick::Micro
    }

    fn evaluate(&self, log: &AdmissionLog, now: Timestamp, cost: Cost) -> Outcome {
        let at = now.max(log.newest_time);
        let left = self.expired_units(log, at);
        let used = log.total_units.saturating_sub(left);
        let total = used.saturating_add(cost.get());
        let (verdict, used) = if cost.get() > self.requests {
            (Verdict::Never, used)
        } else if total <= self.requests {
            (Verdict::PASS, total)
        } else {
            let must_leave = left.saturating_add(total.saturating_sub(self.requests));
            (Verdict::NotUntil { retry_after: self.when_expired(log, must_leave).since(now) }, used)
        };
        let newest = if verdict.is_pass() && cost > Cost::ZERO { at } else { log.newest() };
        Outcome::new(
            verdict,
            self.requests,
            self.requests.saturating_sub(used),
            if used == 0 { TimeSpan::ZERO } else { (newest + self.window).since(now) },
        )
    }

    fn charge(&self, log: &mut AdmissionLog, now: Timestamp, cost: Cost) {
        self.remove_expired(log, now);
        let at = log.newest_time;
        let units = cost.get().min(EXACT_MAX.saturating_sub(log.total_units));
        if units == 0 {
            return;
        }
        log.total_units = log.total_units.saturating_add(units);
        let full = log.entries.len() as u64 >= self.requests;
        match log.entries.back_mut() {
            // One entry per instant. If the log is full, the newest entry takes the charge.
            Some(newest) if newest.at == at || full => {
                *newest = AdmissionEntry { at, units: newest.units.saturating_add(units) };
            }
            _ => log.entries.push_back(AdmissionEntry { at, units }),
        }
    }

    fn refund(&self, log: &mut AdmissionLog, charged: Timestamp, now: Timestamp, cost: Cost) -> bool {
        let Ok(index) = log.entries.binary_search_by_key(&charged, |entry| entry.at) else { return false };
        let Some(entry) = log.entries.get_mut(index) else { return false };
        let counts = self.is_inside(entry, now.max(log.newest_time));
        let units = cost.get().min(entry.units);
        entry.units = entry.units.saturating_sub(units);
        log.total_units = log.total_units.saturating_sub(units);
        if entry.units == 0 {
            log.entries.remove(index);
        }
        counts && units > 0
    }

    fn rebase(&self, old: &Self, mut log: AdmissionLog, now: Timestamp) -> AdmissionLog {
        if self.window != old.window {
            old.remove_expired(&mut log, now);
        }
        log
    }

    fn used(&self, log: &AdmissionLog, now: Timestamp) -> u64 {
        log.total_units.saturating_sub(self.expired_units(log, now.max(log.newest_time)))
    }

    fn heap_bytes(log: &AdmissionLog) -> usize {
        log.entries.capacity().saturating_mul(size_of::<AdmissionEntry>())
    }

    /// Merges the two newest entries at the later time, so no unit leaves the window too early.
    fn make_room(log: &mut AdmissionLog) {
        if log.entries.len() < log.entries.capacity() {
            return;
        }
        if let Some(newest) = log.entries.pop_back() {
            match log.entries.back_mut() {
                Some(before) => {
                    *before =
                        AdmissionEntry { at: newest.at, units: before.units.saturating_add(newest.units) };
                }
                None => log.entries.push_back(newest),
            }
        }
    }

    fn is_fresh(&self, log: &AdmissionLog, now: Timestamp) -> bool {
        log.entries.back().is_none_or(|newest| !self.is_inside(newest, now.max(log.newest_time)))
    }
}
