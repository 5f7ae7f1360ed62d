//! `sliding_window_counter`: two counts that approximate a sliding window.
//!
//! The algorithm assumes that the previous window's requests were spread evenly. Their share inside the sliding window is
//! `previous · (1 − elapsed/window)`. A request is admitted iff the floor of that share, plus the units admitted in this
//! window, plus the cost, is at most `requests`. The error is bounded: any interval of one window's length admits at most
//! twice `requests`. Small limits reach that (1 per minute: one at the end of a minute, one right after it).

use core::num::NonZeroU64;

use crate::decision::{Outcome, Verdict};
use crate::limit::{Algorithm, Cost, LimitError, RateAlgorithm, Spec};
use crate::time::{EXACT_MAX, Tick, TimeSpan, Timestamp};
use crate::word::{bits_for_twice, join, split};

/// The parameters of a sliding window counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingCounter {
    tick: Tick,
    requests: u64,
    /// The window's length in ticks.
    length: NonZeroU64,
}

/// The window's number, its admitted units, and those of the window before. The default is an unused key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TwoWindows {
    pub(crate) window: u64,
    pub(crate) previous: u64,
    pub(crate) current: u64,
}

impl SlidingCounter {
    /// The window's length.
    pub const fn window(&self) -> TimeSpan {
        TimeSpan::from_micros(self.length.get().saturating_mul(self.tick.micros()))
    }

    /// The state at `now` and the elapsed ticks of its window; never an earlier window than the state's.
    fn settle(&self, state: TwoWindows, now: Timestamp) -> (TwoWindows, u64) {
        let tick = self.tick.of(now);
        let window = tick / self.length;
        let settled = match window.checked_sub(state.window) {
            None | Some(0) => state,
            Some(1) => TwoWindows { window, previous: state.current, current: 0 },
            Some(_) => TwoWindows { window, previous: 0, current: 0 },
        };
        (settled, tick.saturating_sub(self.start_tick(settled.window)))
    }

    fn start_tick(&self, window: u64) -> u64 {
        window.saturating_mul(self.length.get())
    }

    /// The part of `previous` inside the sliding window.
    fn share(&self, previous: u64, elapsed: u64) -> u64 {
        previous.saturating_mul(self.length.get().saturating_sub(elapsed)) / self.length
    }

    /// The first tick of a window at which at most `room` of `previous` is still inside.
    fn ticks_until_share(&self, previous: u64, room: u64) -> u64 {
        let Some(previous) = NonZeroU64::new(previous).filter(|count| count.get() > room) else { return 0 };
        // share ≤ room  ⇔  previous · (length − elapsed) < (room + 1) · length
        let inside = room.saturating_add(1).saturating_mul(self.length.get()).div_ceil(previous.get());
        self.length.get().saturating_sub(inside.saturating_sub(1))
    }

    /// The first instant at which `cost` (at most `requests`) fits, if nothing else is charged.
    fn when_fits(&self, state: &TwoWindows, cost: u64) -> Timestamp {
        let max_used = self.requests.saturating_sub(cost);
        let tick = match max_used.checked_sub(state.current) {
            Some(room) => {
                self.start_tick(state.window).saturating_add(self.ticks_until_share(state.previous, room))
            }
            None => self
                .start_tick(state.window.saturating_add(1))
                .saturating_add(self.ticks_until_share(state.current, max_used)),
        };
        self.tick.start(tick)
    }

    /// The largest count for which `count · length` is exact, even if more than `requests` is charged.
    pub(crate) fn max_count(&self) -> u64 {
        EXACT_MAX / self.length
    }
}

impl RateAlgorithm for SlidingCounter {
    const ALGORITHM: Algorithm = Algorithm::SlidingCounter;
    type State = TwoWindows;

    fn new(spec: &Spec) -> Result<Self, LimitError> {
        spec.validate()?;
        spec.reject_burst(Self::ALGORITHM)?;
        let fitting = Tick::ALL.into_iter().find_map(|tick| {
            let length = NonZeroU64::new(tick.count(spec.window)?)?;
            (spec.requests <= EXACT_MAX / length).then_some(Self { tick, requests: spec.requests, length })
        });
        fitting.ok_or_else(|| spec.not_representable())
    }

    fn capacity(&self) -> u64 {
        self.requests
    }

    fn tick(&self) -> Tick {
        self.tick
    }

    fn evaluate(&self, state: &TwoWindows, now: Timestamp, cost: Cost) -> Outcome {
        let (mut state, elapsed) = self.settle(*state, now);
        let used = self.share(state.previous, elapsed).saturating_add(state.current);
        let total = used.saturating_add(cost.get());
        let (verdict, used) = if cost.get() > self.requests {
            (Verdict::Never, used)
        } else if total <= self.requests {
            state.current = state.current.saturating_add(cost.get());
            (Verdict::PASS, total)
        } else {
            (Verdict::NotUntil { retry_after: self.when_fits(&state, cost.get()).since(now) }, used)
        };
        let reset_after =
            if used == 0 { TimeSpan::ZERO } else { self.when_fits(&state, self.requests).since(now) };
        Outcome::new(verdict, self.requests, self.requests.saturating_sub(used), reset_after)
    }

    fn charge(&self, state: &mut TwoWindows, now: Timestamp, cost: Cost) {
        *state = self.settle(*state, now).0;
        state.current = state.current.saturating_add(cost.get()).min(self.max_count());
    }

    fn refund(&self, state: &mut TwoWindows, charged: Timestamp, now: Timestamp, cost: Cost) -> bool {
        *state = self.settle(*state, now).0;
        let charged = self.tick.of(charged) / self.length;
        let count = if charged == state.window {
            &mut state.current
        } else if charged.saturating_add(1) == state.window {
            &mut state.previous
        } else {
            return false;
        };
        let units = cost.get().min(*count);
        *count = count.saturating_sub(units);
        units > 0
    }

    fn rebase(&self, old: &Self, state: TwoWindows, now: Timestamp) -> TwoWindows {
        if self.window() == old.window() {
            // The same windows, perhaps in other ticks: their numbers and counts stay the same.
            let max = self.max_count();
            return TwoWindows {
                previous: state.previous.min(max),
                current: state.current.min(max),
                ..state
            };
        }
        let (settled, elapsed) = old.settle(state, now);
        let used = old.share(settled.previous, elapsed).saturating_add(settled.current);
        let begun = old.tick.start(old.start_tick(settled.window));
        let window = self.tick.of(now.max(begun)) / self.length;
        TwoWindows { window, previous: 0, current: used.min(self.max_count()) }
    }

    fn used(&self, state: &TwoWindows, now: Timestamp) -> u64 {
        let (state, elapsed) = self.settle(*state, now);
        self.share(state.previous, elapsed).saturating_add(state.current)
    }

    fn is_fresh(&self, state: &TwoWindows, now: Timestamp) -> bool {
        let (state, elapsed) = self.settle(*state, now);
        state.current == 0 && self.share(state.previous, elapsed) == 0
    }

    /// The counts in the low bits, the window above them.
    fn pack(&self, state: &TwoWindows, origin: Timestamp) -> Option<u64> {
        let bits = bits_for_twice(self.requests);
        let window = state.window.checked_sub(self.tick.of(origin) / self.length)?;
        join(join(window, state.previous, bits)?, state.current, bits)
    }

    fn unpack(&self, word: u64, origin: Timestamp) -> TwoWindows {
        let bits = bits_for_twice(self.requests);
        let (above, current) = split(word, bits);
        let (window, previous) = split(above, bits);
        TwoWindows { window: window.saturating_add(self.tick.of(origin) / self.length), previous, current }
    }
}
