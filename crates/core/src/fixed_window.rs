//! `fixed_window`: at most `requests` in each window, windows aligned to the Unix epoch.
//!
//! The cheapest algorithm and the easiest to explain. Its drawback: a client that uses up one window at its end and the
//! next at its start gets up to twice `requests` within one window's length.

use core::num::NonZeroU64;

use crate::decision::{Outcome, Verdict};
use crate::limit::{Algorithm, Cost, LimitError, RateAlgorithm, Spec};
use crate::time::{EXACT_MAX, Tick, TimeSpan, Timestamp};
use crate::word::{bits_for_twice, join, split};

/// The parameters of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    requests: u64,
    /// The window's length in microseconds.
    length: NonZeroU64,
}

/// The window's number and its admitted units. The default is an unused key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WindowCount {
    pub(crate) window: u64,
    pub(crate) count: u64,
}

impl FixedWindow {
    /// The window's length.
    pub const fn window(&self) -> TimeSpan {
        TimeSpan::from_micros(self.length.get())
    }

    /// The state at `now`. A window that has begun is never replaced by an earlier one.
    fn settle(&self, state: WindowCount, now: Timestamp) -> WindowCount {
        let window = now.as_micros() / self.length;
        if window > state.window { WindowCount { window, count: 0 } } else { state }
    }

    fn end(&self, state: &WindowCount) -> Timestamp {
        Timestamp::from_micros(state.window.saturating_add(1).saturating_mul(self.length.get()))
    }
}

impl RateAlgorithm for FixedWindow {
    const ALGORITHM: Algorithm = Algorithm::FixedWindow;
    type State = WindowCount;

    fn new(spec: &Spec) -> Result<Self, LimitError> {
        spec.validate()?;
        spec.reject_burst(Self::ALGORITHM)?;
        match NonZeroU64::new(spec.window.as_micros()) {
            Some(length) if spec.requests <= EXACT_MAX => Ok(Self { requests: spec.requests, length }),
            _ => Err(spec.not_representable()),
        }
    }

    fn capacity(&self) -> u64 {
        self.requests
    }

    fn tick(&self) -> Tick {
        Tick::Micro
    }

    fn evaluate(&self, state: &WindowCount, now: Timestamp, cost: Cost) -> Outcome {
        let before = self.settle(*state, now);
        let end = self.end(&before);
        let total = before.count.saturating_add(cost.get());
        let (verdict, count) = if cost.get() > self.requests {
            (Verdict::Never, before.count)
        } else if total <= self.requests {
            (Verdict::PASS, total)
        } else {
            (Verdict::NotUntil { retry_after: end.since(now) }, before.count)
        };
        Outcome::new(verdict, self.requests, self.requests.saturating_sub(count), end.since(now))
    }

    fn charge(&self, state: &mut WindowCount, now: Timestamp, cost: Cost) {
        *state = self.settle(*state, now);
        state.count = state.count.saturating_add(cost.get()).min(EXACT_MAX);
    }

    fn refund(&self, state: &mut WindowCount, charged: Timestamp, now: Timestamp, cost: Cost) -> bool {
        *state = self.settle(*state, now);
        let is_current = charged.as_micros() / self.length == state.window;
        let units = if is_current { cost.get().min(state.count) } else { 0 };
        state.count = state.count.saturating_sub(units);
        units > 0
    }

    fn rebase(&self, old: &Self, state: WindowCount, now: Timestamp) -> WindowCount {
        if self.length == old.length {
            return state;
        }
        let settled = old.settle(state, now);
        let begun = Timestamp::from_micros(settled.window.saturating_mul(old.length.get()));
        WindowCount { window: now.max(begun).as_micros() / self.length, count: settled.count }
    }

    fn used(&self, state: &WindowCount, now: Timestamp) -> u64 {
        self.settle(*state, now).count
    }

    fn is_fresh(&self, state: &WindowCount, now: Timestamp) -> bool {
        self.settle(*state, now).count == 0
    }

    /// The count in the low bits, the window above it.
    fn pack(&self, state: &WindowCount, origin: Timestamp) -> Option<u64> {
        let window = state.window.checked_sub(origin.as_micros() / self.length)?;
        join(window, state.count, bits_for_twice(self.requests))
    }

    fn unpack(&self, word: u64, origin: Timestamp) -> WindowCount {
        let (window, count) = split(word, bits_for_twice(self.requests));
        WindowCount { window: window.saturating_add(origin.as_micros() / self.length), count }
    }
}
