//! The changes that one node made to its copy of a counter, to be merged into another copy.
//!
//! A delta is stamped: those of windows carry their window, those of a bucket the level that they produce on their own. A late
//! delta is therefore never charged to a new window. For one node, a copy with the node's deltas merged in equals the node's own
//! copy. For several nodes, merging in any order never forgets a charge: a bucket's charges are functions
//! `level -> max(level + added, least)`, which compose, and whose composition in any order is at least the level after the
//! same charges in the order of time.

use crate::bucket::{Bucket, Level};
use crate::fixed_window::WindowCount;
use crate::limit::{AlgorithmKind, Cost, CounterState, Limit};
use crate::sliding_counter::TwoWindows;
use crate::time::{EXACT_MAX, TimeSpan, Timestamp};

/// The largest magnitude of a number that a double represents exactly.
const MAX_MAGNITUDE: i64 = (1 << 53) - 1;

/// Charges and refunds of one node; the default is none. Sliding logs and leaky buckets have no deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CounterDelta {
    /// No change.
    #[default]
    Empty,
    /// Changes of a token bucket.
    Bucket {
        /// Subunits charged, less those refunded.
        added: i64,
        /// The level that the changes produce in an empty bucket.
        least: Level,
        /// The time of the last change.
        changed_at: Timestamp,
    },
    /// Changes of windows.
    Windows {
        /// The number of the current window.
        window: u64,
        /// Units charged in the window before, less those refunded.
        previous: i64,
        /// Units charged in the window, less those refunded.
        current: i64,
    },
}

impl CounterDelta {
    /// Whether nothing changed.
    pub const fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Adds a change of windows.
    fn add_windows(&mut self, at: u64, previous_units: i64, current_units: i64) {
        if previous_units == 0 && current_units == 0 {
            return;
        }
        let (mut window, mut previous, mut current) = match *self {
            Self::Windows { window, previous, current } => (window, previous, current),
            Self::Empty | Self::Bucket { .. } => (at, 0, 0),
        };
        match at.checked_sub(window) {
            Some(0) => {}
            Some(1) => (window, previous, current) = (at, current, 0),
            Some(_) => (window, previous, current) = (at, 0, 0),
            // The time went back by a window, which a counter that keeps its window does not allow.
            None => return,
        }
        previous = previous.saturating_add(previous_units);
        current = current.saturating_add(current_units);
        *self = Self::Windows { window, previous, current };
    }

    /// Adds a change of a bucket by `subunits` at `now`.
    fn add_bucket(&mut self, bucket: &Bucket, subunits: i64, now: Timestamp) {
        if subunits == 0 {
            return;
        }
        let (added, least, changed_at) = match *self {
            Self::Bucket { added, least, changed_at } => (added, least.empty_at, changed_at),
            Self::Empty | Self::Windows { .. } => (0, 0, now),
        };
        let alone = bucket.drained_by(now).saturating_add_signed(i128::from(subunits.max(0)));
        *self = Self::Bucket {
            added: added.saturating_add(subunits).clamp(-MAX_MAGNITUDE, MAX_MAGNITUDE),
            least: bucket.level_at(least.saturating_add_signed(i128::from(subunits)).max(alone)),
            changed_at: changed_at.max(now),
        };
    }
}

impl Limit {
    /// Charges `cost` like [`charge`](Self::charge), and adds the charge to `delta`.
    pub fn charge_with_delta(
        &self,
        state: &mut CounterState,
        delta: &mut CounterDelta,
        now: Timestamp,
        cost: Cost,
    ) {
        self.change_with_delta(state, delta, now, |state| self.charge(state, now, cost));
    }

    /// Refunds `cost` like [`refund`](Self::refund), and adds the refund to `delta`. Returns whether the state contained any.
    pub fn refund_with_delta(
        &self,
        state: &mut CounterState,
        delta: &mut CounterDelta,
        charged: Timestamp,
        now: Timestamp,
        cost: Cost,
    ) -> bool {
        let mut contains = false;
        self.change_with_delta(state, delta, now, |state| contains = self.refund(state, charged, now, cost));
        contains
    }

    /// Changes `state`, and adds the difference to `delta`.
    fn change_with_delta(
        &self,
        state: &mut CounterState,
        delta: &mut CounterDelta,
        now: Timestamp,
        change: impl FnOnce(&mut CounterState),
    ) {
        // A refund of nothing only moves the state to the window of `now`.
        self.refund(state, now, now, Cost::ZERO);
        let before = state.clone();
        change(state);
        match (self.kind(), &before, &*state) {
            (AlgorithmKind::TokenBucket(limit), before, CounterState::TokenBucket(after)) => {
                let bucket = &limit.bucket;
                let held = match before {
                    CounterState::TokenBucket(before) => bucket.subunits(*before, now),
                    _ => 0,
                };
                delta.add_bucket(bucket, difference(bucket.subunits(*after, now), held), now);
            }
            (AlgorithmKind::FixedWindow(_), before, CounterState::FixedWindow(after)) => {
                let count = match before {
                    CounterState::FixedWindow(before) => before.count,
                    _ => 0,
                };
                delta.add_windows(after.window, 0, difference(after.count, count));
            }
            (AlgorithmKind::SlidingCounter(_), before, CounterState::SlidingCounter(after)) => {
                let (previous, current) = match before {
                    CounterState::SlidingCounter(before) => (before.previous, before.current),
                    _ => (0, 0),
                };
                delta.add_windows(
                    after.window,
                    difference(after.previous, previous),
                    difference(after.current, current),
                );
            }
            _ => {}
        }
    }

    /// Merges the changes of a node into `state`. Changes that no longer count at `now` are dropped: those of a window that is
    /// over, and those of a bucket that is old enough to have drained.
    pub fn merge(&self, state: &mut CounterState, delta: &CounterDelta, now: Timestamp) {
        match (self.kind(), delta) {
            (AlgorithmKind::TokenBucket(limit), CounterDelta::Bucket { added, least, changed_at }) => {
                if now.since(*changed_at) >= limit.bucket.drain_time() {
                    return;
                }
                let level = match state {
                    CounterState::TokenBucket(level) => level.empty_at,
                    _ => 0,
                };
                let merged = level.saturating_add_signed(i128::from(*added)).max(least.empty_at);
                *state = CounterState::TokenBucket(limit.bucket.level_at(merged));
            }
            (AlgorithmKind::FixedWindow(_), CounterDelta::Windows { window, current, .. }) => {
                let held = match state {
                    CounterState::FixedWindow(held) => *held,
                    _ => WindowCount::default(),
                };
                let count = match window.checked_sub(held.window) {
                    None => return,
                    Some(0) => held.count,
                    Some(_) => 0,
                };
                let count = merged_count(count, *current, EXACT_MAX);
                *state = CounterState::FixedWindow(WindowCount { window: *window, count });
            }
            (AlgorithmKind::SlidingCounter(limit), CounterDelta::Windows { window, previous, current }) => {
                let held = match state {
                    CounterState::SlidingCounter(held) => *held,
                    _ => TwoWindows::default(),
                };
                let merged = merged_windows(held, *window, *previous, *current, limit.max_count());
                *state = CounterState::SlidingCounter(merged);
            }
            _ => {}
        }
    }

    /// Converts changes made under `old`, as [`rebase`](Self::rebase) converts a state.
    pub fn rebase_delta(&self, old: &Self, delta: CounterDelta, now: Timestamp) -> CounterDelta {
        match (self.kind(), old.kind(), delta) {
            (
                AlgorithmKind::TokenBucket(new),
                AlgorithmKind::TokenBucket(old),
                CounterDelta::Bucket { added, least, changed_at },
            ) if new.rate() != old.rate() => {
                let [unit, old_unit] = [new.rate(), old.rate()].map(|rate| i128::from(rate.unit().get()));
                let scaled = i128::from(added).saturating_mul(unit).checked_div(old_unit).unwrap_or_default();
                let added = i64::try_from(scaled).unwrap_or(i64::MAX).clamp(-MAX_MAGNITUDE, MAX_MAGNITUDE);
                CounterDelta::Bucket { added, least: new.bucket.rebase(&old.bucket, least, now), changed_at }
            }
            (
                AlgorithmKind::FixedWindow(new),
                AlgorithmKind::FixedWindow(old),
                CounterDelta::Windows { current, .. },
            ) if new.window() != old.window() => windows_at(now, new.window(), current),
            (
                AlgorithmKind::SlidingCounter(new),
                AlgorithmKind::SlidingCounter(old),
                CounterDelta::Windows { current, .. },
            ) if new.window() != old.window() => windows_at(now, new.window(), current),
            _ if self.algorithm() == old.algorithm() => delta,
            _ => CounterDelta::Empty,
        }
    }

    /// The state in numbers that a double represents exactly; `None` for a sliding log. A bucket is empty at (tick, subunits
    /// after its start), windows have (window, units) or (window, units of the window before, units).
    pub fn state_numbers(&self, state: &CounterState) -> Option<[u64; 3]> {
        match (self.kind(), state) {
            (AlgorithmKind::TokenBucket(limit), CounterState::TokenBucket(level)) => {
                Some(level_numbers(&limit.bucket, *level))
            }
            (AlgorithmKind::LeakyBucket(limit), CounterState::LeakyBucket(level)) => {
                Some(level_numbers(&limit.0, *level))
            }
            (_, CounterState::FixedWindow(state)) => Some([state.window, state.count, 0]),
            (_, CounterState::SlidingCounter(state)) => Some([state.window, state.previous, state.current]),
            (_, CounterState::SlidingLog(_)) | (AlgorithmKind::SlidingLog(_), _) => None,
            _ => Some([0; 3]),
        }
    }

    /// The state with these [`state_numbers`](Self::state_numbers); unused for a sliding log.
    pub fn state_from_numbers(&self, [first, second, third]: [u64; 3]) -> CounterState {
        match self.kind() {
            AlgorithmKind::TokenBucket(limit) => {
                CounterState::TokenBucket(level_from_numbers(&limit.bucket, first, second))
            }
            AlgorithmKind::LeakyBucket(limit) => {
                CounterState::LeakyBucket(level_from_numbers(&limit.0, first, second))
            }
            AlgorithmKind::FixedWindow(_) => {
                CounterState::FixedWindow(WindowCount { window: first, count: second })
            }
            AlgorithmKind::SlidingCounter(_) => {
                CounterState::SlidingCounter(TwoWindows { window: first, previous: second, current: third })
            }
            AlgorithmKind::SlidingLog(_) => CounterState::Unseen,
        }
    }

    /// The delta in numbers whose magnitude a double represents exactly: a bucket's subunits, the level they produce on their own
    /// as in [`state_numbers`](Self::state_numbers), and the time of the last change in microseconds; or the window, the units
    /// of the window before, and the units.
    pub fn delta_numbers(&self, delta: &CounterDelta) -> [i64; 4] {
        let exact = |number: i64| number.clamp(-MAX_MAGNITUDE, MAX_MAGNITUDE);
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        match (self.kind(), *delta) {
            (AlgorithmKind::TokenBucket(limit), CounterDelta::Bucket { added, least, changed_at }) => {
                let [tick, subunits, _] = level_numbers(&limit.bucket, least);
                [exact(added), signed(tick), signed(subunits), signed(changed_at.as_micros())]
            }
            (_, CounterDelta::Windows { window, previous, current }) => {
                [signed(window), exact(previous), exact(current), 0]
            }
            _ => [0; 4],
        }
    }

    /// The longest time for which a charge counts.
    pub fn memory_span(&self) -> TimeSpan {
        let twice = |span: TimeSpan| TimeSpan::from_micros(span.as_micros().saturating_mul(2));
        match self.kind() {
            AlgorithmKind::TokenBucket(limit) => limit.bucket.drain_time(),
            AlgorithmKind::LeakyBucket(limit) => limit.0.drain_time(),
            AlgorithmKind::FixedWindow(limit) => limit.window(),
            AlgorithmKind::SlidingLog(limit) => limit.window(),
            AlgorithmKind::SlidingCounter(limit) => twice(limit.window()),
        }
    }
}

fn windows_at(now: Timestamp, length: TimeSpan, current: i64) -> CounterDelta {
    let window = now.as_micros().checked_div(length.as_micros()).unwrap_or_default();
    CounterDelta::Windows { window, previous: 0, current }
}

fn merged_windows(held: TwoWindows, window: u64, previous: i64, current: i64, max: u64) -> TwoWindows {
    let merged = |count: u64, units: i64| merged_count(count, units, max);
    match (window.checked_sub(held.window), held.window.checked_sub(window)) {
        (Some(0), _) => TwoWindows {
            window,
            previous: merged(held.previous, previous),
            current: merged(held.current, current),
        },
        (Some(1), _) => {
            TwoWindows { window, previous: merged(held.current, previous), current: merged(0, current) }
        }
        (Some(_), _) => TwoWindows { window, previous: merged(0, previous), current: merged(0, current) },
        (None, Some(1)) => TwoWindows { previous: merged(held.previous, current), ..held },
        (None, _) => held,
    }
}

fn merged_count(count: u64, units: i64, max: u64) -> u64 {
    count.saturating_add_signed(units).min(max)
}

fn difference(after: u64, before: u64) -> i64 {
    let [after, before] = [after, before].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    after.saturating_sub(before)
}

fn level_numbers(bucket: &Bucket, level: Level) -> [u64; 3] {
    let drain = u128::from(bucket.rate().drain().get());
    let [tick, subunits] = [level.empty_at.checked_div(drain), level.empty_at.checked_rem(drain)]
        .map(|number| u64::try_from(number.unwrap_or_default()).unwrap_or(u64::MAX));
    [tick, subunits, 0]
}

fn level_from_numbers(bucket: &Bucket, tick: u64, subunits: u64) -> Level {
    let drain = u128::from(bucket.rate().drain().get());
    bucket.level_at(u128::from(tick).saturating_mul(drain).saturating_add(u128::from(subunits)))
}
