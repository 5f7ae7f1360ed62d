//! A bucket that fills with what is spent and drains at an exact rate.
//!
//! Token bucket and leaky bucket use the same bucket, and both store only the time at which it is empty. To keep every
//! rational rate exact, the content is counted in *subunits*: with `g` the greatest common divisor of `requests` and the
//! window in ticks, one unit of cost is `window / g` subunits and each tick drains `requests / g` of them. Nothing is
//! rounded, so nothing drifts.

use core::num::NonZeroU64;

use crate::decision::{Outcome, Verdict};
use crate::limit::{Cost, LimitError, Spec, StepResult, WORD_MAX};
use crate::time::{EXACT_MAX, Tick, TimeSpan, Timestamp};

/// An exact rate: a unit of cost is `unit` subunits, and each tick drains `drain` subunits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    tick: Tick,
    unit: NonZeroU64,
    drain: NonZeroU64,
}

impl Rate {
    /// The tick in which this rate measures time.
    pub const fn tick(&self) -> Tick {
        self.tick
    }

    /// Subunits per unit of cost.
    pub const fn unit(&self) -> NonZeroU64 {
        self.unit
    }

    /// Subunits that drain per tick.
    pub const fn drain(&self) -> NonZeroU64 {
        self.drain
    }

    fn new(spec: &Spec, tick: Tick) -> Option<Self> {
        let requests = NonZeroU64::new(spec.requests)?;
        let period = NonZeroU64::new(tick.count(spec.window)?)?;
        let divisor = gcd(requests, period);
        let unit = NonZeroU64::new(period.get() / divisor)?;
        let drain = NonZeroU64::new(requests.get() / divisor)?;
        (drain.get() <= EXACT_MAX).then_some(Self { tick, unit, drain })
    }
}

/// When a bucket is empty, as the number of subunits that have drained since the epoch by then. The default is a bucket
/// never used.
///
/// The fill level at an instant follows from how far that instant lies before `empty_at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Level {
    pub(crate) empty_at: u128,
}

/// A rate and a capacity: the part that token bucket and leaky bucket share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    rate: Rate,
    capacity: u64,
    /// `capacity` in subunits.
    capacity_subunits: u64,
    /// The largest fill level at which a charge is admitted: what drains within the longest wait, at most
    /// `capacity_subunits`.
    max_backlog: u64,
    /// The largest fill level that charges of single units reach: the last of them found at most `max_backlog`.
    max_level: u64,
    /// The ticks, counted from an origin, at which a level and every charge to it still fit a word; 0 if words are not used.
    word_ticks: u64,
}

impl Bucket {
    /// Creates a bucket of `capacity` units, at least one, in the finest tick that represents it exactly. `max_wait` limits
    /// how long a charge waits for earlier charges to drain, in whole ticks.
    pub(crate) fn new(spec: &Spec, capacity: u64, max_wait: Option<TimeSpan>) -> Result<Self, LimitError> {
        spec.validate()?;
        let fitting = Tick::ALL.into_iter().find_map(|tick| {
            let rate = Rate::new(spec, tick)?;
            let capacity_subunits = capacity
                .checked_mul(rate.unit.get())
                .filter(|capacity_subunits| *capacity_subunits <= EXACT_MAX)?;
            let max_backlog = max_wait.map_or(capacity_subunits, |wait| {
                let ticks = wait.as_micros().checked_div(tick.micros()).unwrap_or_default();
                ticks.saturating_mul(rate.drain.get()).min(capacity_subunits)
            });
            let max_level = max_backlog.saturating_add(rate.unit.get()).min(capacity_subunits);
            let word_ticks = (WORD_MAX.saturating_sub(EXACT_MAX) / rate.drain).saturating_add(1);
            Some(Self { rate, capacity, capacity_subunits, max_backlog, max_level, word_ticks })
        });
        fitting.ok_or(LimitError::NotRepresentable { requests: spec.requests, window: spec.window, capacity })
    }

    /// The same bucket, whose packed levels are not read as words: a charge to it is not a sum.
    pub(crate) fn without_words(self) -> Self {
        Self { word_ticks: 0, ..self }
    }

    pub(crate) const fn rate(&self) -> &Rate {
        &self.rate
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) const fn max_backlog(&self) -> u64 {
        self.max_backlog
    }

    /// The units in the bucket, rounded up to whole units.
    pub(crate) fn used(&self, level: Level, now: Timestamp) -> u64 {
        self.subunits(level, now).div_ceil(self.rate.unit.get())
    }

    /// The time in which a full bucket drains.
    pub(crate) fn drain_time(&self) -> TimeSpan {
        let ticks = self.capacity_subunits.div_ceil(self.rate.drain.get());
        TimeSpan::from_micros(ticks.saturating_mul(self.rate.tick.micros()))
    }

    /// Checks whether `cost` fits.
    pub(crate) fn evaluate(&self, level: Level, now: Timestamp, cost: Cost) -> Outcome {
        let before = level.empty_at.saturating_sub(self.drained_by(now));
        if let Ok(before) = u64::try_from(before) {
            return self.evaluate_subunits(before, now, cost).0;
        }
        // Reached only if time went far back: exact, though not fast.
        let verdict = match self.room_for(cost) {
            Some(room) => Verdict::NotUntil { retry_after: self.time_until_at_most(room, level, now) },
            None => Verdict::Never,
        };
        let reset_after = self.time_until_at_most(0, level, now);
        Outcome::new(verdict, self.capacity, 0, reset_after)
    }

    /// Checks whether `cost` fits on top of `before` subunits; also returns the fill level afterwards.
    #[expect(clippy::inline_always, reason = "on the path of every decision")]
    #[inline(always)]
    fn evaluate_subunits(&self, before: u64, now: Timestamp, cost: Cost) -> (Outcome, u64) {
        match before.checked_add(self.subunits_of(cost)) {
            Some(after) if after <= self.capacity_subunits && before <= self.max_backlog => {
                (self.admitted(before, now, cost), after)
            }
            _ => (self.rejected(before, self.room_for(cost), now), before),
        }
    }

    /// The outcome if `cost` fits on top of `before` subunits.
    #[expect(clippy::inline_always, reason = "fields that the caller does not read are not computed")]
    #[inline(always)]
    pub(crate) fn admitted(&self, before: u64, now: Timestamp, cost: Cost) -> Outcome {
        self.outcome(Verdict::PASS, before.wrapping_add(self.subunits_of(cost)), now)
    }

    /// The outcome if a cost does not fit on top of `before` subunits; it would fit on top of at most `room`.
    #[expect(clippy::inline_always, reason = "fields that the caller does not read are not computed")]
    #[inline(always)]
    pub(crate) fn rejected(&self, before: u64, room: Option<u64>, now: Timestamp) -> Outcome {
        let verdict = match room {
            Some(room) => {
                Verdict::NotUntil { retry_after: self.time_until_drained(before.saturating_sub(room), now) }
            }
            None => Verdict::Never,
        };
        self.outcome(verdict, before, now)
    }

    /// The outcome with a fill level of `held` subunits afterwards.
    #[expect(clippy::inline_always, reason = "fields that the caller does not read are not computed")]
    #[inline(always)]
    fn outcome(&self, verdict: Verdict, held: u64, now: Timestamp) -> Outcome {
        let left = self.max_level.saturating_sub(held);
        // The division costs as much as everything else here. It is skipped if less than a unit is left, as in most
        // rejections, and if a unit is a single subunit.
        let remaining = match self.rate.unit.get() {
            unit if left < unit => 0,
            1 => left,
            _ => left / self.rate.unit,
        };
        Outcome::new(verdict, self.capacity, remaining, self.time_until_drained(held, now))
    }

    #[expect(clippy::inline_always, reason = "two instructions")]
    #[inline(always)]
    pub(crate) fn subunits_of(&self, cost: Cost) -> u64 {
        cost.get().saturating_mul(self.rate.unit.get())
    }

    /// The subunits in a packed level at `now`, and the subunits drained since `origin`; `None` in the rare case that
    /// needs wide arithmetic.
    #[expect(clippy::inline_always, reason = "on the path of every decision")]
    #[inline(always)]
    fn read_word(&self, word: u64, origin: Timestamp, now: Timestamp) -> Option<(u64, u64)> {
        // A time before the origin wraps to a tick after all of them.
        let ticks = self.rate.tick.of(now).wrapping_sub(self.rate.tick.of(origin));
        if ticks >= self.word_ticks {
            return None;
        }
        let drained = ticks.wrapping_mul(self.rate.drain.get());
        Some((word.saturating_sub(drained), drained))
    }

    /// Evaluates and charges `cost` on a packed level.
    #[expect(clippy::inline_always, reason = "on the path of every decision")]
    #[inline(always)]
    pub(crate) fn step_word(
        &self,
        word: u64,
        origin: Timestamp,
        now: Timestamp,
        cost: Cost,
    ) -> Option<(StepResult, u64)> {
        let (before, drained) = self.read_word(word, origin, now)?;
        let (outcome, after) = self.evaluate_subunits(before, now, cost);
        Some((StepResult { outcome, next: drained.wrapping_add(after) }, before))
    }

    /// Charges one unit to a packed level. Returns the subunits before the charge, and the next packed level if the unit
    /// fits.
    #[expect(clippy::inline_always, reason = "on the path of every decision")]
    #[inline(always)]
    pub(crate) fn spend_one(
        &self,
        word: u64,
        origin: Timestamp,
        now: Timestamp,
    ) -> Option<(u64, Option<u64>)> {
        let (before, drained) = self.read_word(word, origin, now)?;
        if before <= self.room_for_one() {
            Some((before, Some(drained.wrapping_add(before).wrapping_add(self.rate.unit.get()))))
        } else {
            Some((before, None))
        }
    }

    /// The largest fill level at which one unit still fits. One unit always fits an empty bucket, so nothing wraps.
    #[expect(clippy::inline_always, reason = "two instructions")]
    #[inline(always)]
    pub(crate) const fn room_for_one(&self) -> u64 {
        self.capacity_subunits.wrapping_sub(self.rate.unit.get())
    }

    /// The time until `subunits` have drained.
    #[expect(clippy::inline_always, reason = "fields that the caller does not read are not computed")]
    #[inline(always)]
    pub(crate) fn time_until_drained(&self, subunits: u64, now: Timestamp) -> TimeSpan {
        if subunits == 0 {
            return TimeSpan::ZERO;
        }
        let drain = self.rate.drain.get();
        let ticks = match drain {
            1 => subunits,
            _ if subunits <= drain => 1,
            _ => subunits.div_ceil(drain),
        };
        if self.rate.tick == Tick::Micro {
            return TimeSpan::from_micros(ticks).min(Timestamp::MAX.since(now));
        }
        self.rate.tick.start(self.rate.tick.of(now).saturating_add(ticks)).since(now)
    }

    /// Records `cost`, even beyond the capacity.
    pub(crate) fn charge(&self, level: &mut Level, now: Timestamp, cost: Cost) {
        *level = self.level(self.filled(self.subunits(*level, now), cost), now);
    }

    /// Gives back the part of `cost`, charged at `charged`, that is certainly still in the bucket.
    ///
    /// The bucket may have been empty before that charge, so everything drained since then may belong to it. Only the
    /// rest is given back; more would admit a full burst twice in one instant.
    pub(crate) fn refund(&self, level: &mut Level, charged: Timestamp, now: Timestamp, cost: Cost) -> bool {
        self.remove_subunits(level, self.refundable(charged, now, cost), now)
    }

    /// The part of `cost`, charged at `charged`, that cannot have drained since.
    pub(crate) fn refundable(&self, charged: Timestamp, now: Timestamp, cost: Cost) -> u64 {
        let ticks = self.rate.tick.of(now).saturating_sub(self.rate.tick.of(charged));
        let drained = ticks.saturating_mul(self.rate.drain.get());
        self.filled(0, cost).saturating_sub(drained)
    }

    /// Gives back `cost` if the request that departs at `departure` is the last to depart. If several depart within one
    /// tick, the last is unknown and nothing is given back.
    pub(crate) fn refund_last_departure(
        &self,
        level: &mut Level,
        departure: Timestamp,
        now: Timestamp,
        cost: Cost,
    ) -> bool {
        let held = self.filled(0, cost);
        let after_departure = self.subunits(*level, departure);
        // A departure is rounded up to the next tick.
        let is_last = after_departure <= held && after_departure.saturating_add(self.rate.drain.get()) > held;
        is_last && self.rate.unit >= self.rate.drain && self.remove_subunits(level, held, now)
    }

    /// Returns whether there was anything to remove.
    fn remove_subunits(&self, level: &mut Level, subunits: u64, now: Timestamp) -> bool {
        let before = self.subunits(*level, now);
        if before > 0 {
            *level = self.level(before.saturating_sub(subunits), now);
        }
        before.min(subunits) > 0
    }

    /// Converts a level of `old` to this bucket. It keeps the units spent, rounded up to whole subunits.
    pub(crate) fn rebase(&self, old: &Self, level: Level, now: Timestamp) -> Level {
        if self.rate == old.rate {
            return level;
        }
        self.level(self.rescaled(old, old.subunits(level, now)), now)
    }

    /// Converts subunits of `old` to those of this bucket, rounded up.
    pub(crate) fn rescaled(&self, old: &Self, subunits: u64) -> u64 {
        let product = u128::from(subunits).saturating_mul(u128::from(self.rate.unit.get()));
        let rescaled = u64::try_from(product.div_ceil(u128::from(old.rate.unit.get())));
        rescaled.map_or(EXACT_MAX, |subunits| subunits.min(EXACT_MAX))
    }

    /// Whether the bucket is empty at `now`.
    pub(crate) fn is_empty(&self, level: Level, now: Timestamp) -> bool {
        self.subunits(level, now) == 0
    }

    /// The time until the bucket is empty.
    pub(crate) fn time_until_empty(&self, level: Level, now: Timestamp) -> TimeSpan {
        self.time_until_at_most(0, level, now)
    }

    /// The time until at most `subunits` are left.
    pub(crate) fn time_until_at_most(&self, subunits: u64, level: Level, now: Timestamp) -> TimeSpan {
        let excess = level.empty_at.saturating_sub(self.drained_by(now)).saturating_sub(u128::from(subunits));
        // Only if time went far back does the excess need the slow division.
        let ticks = match u64::try_from(excess) {
            Ok(0) => return TimeSpan::ZERO,
            Ok(excess) => excess.div_ceil(self.rate.drain.get()),
            Err(_) => u64::try_from(excess.div_ceil(u128::from(self.rate.drain.get()))).unwrap_or(u64::MAX),
        };
        self.rate.tick.start(self.rate.tick.of(now).saturating_add(ticks)).since(now)
    }

    /// The level in one word, counted from `origin`; `None` if it lies before `origin` or does not fit.
    pub(crate) fn pack(&self, level: Level, origin: Timestamp) -> Option<u64> {
        let word = u64::try_from(level.empty_at.checked_sub(self.drained_by(origin))?).ok()?;
        (word <= WORD_MAX).then_some(word)
    }

    pub(crate) fn unpack(&self, word: u64, origin: Timestamp) -> Level {
        Level { empty_at: self.drained_by(origin).saturating_add(u128::from(word)) }
    }

    /// The fill level at `now`.
    pub(crate) fn subunits(&self, level: Level, now: Timestamp) -> u64 {
        u64::try_from(level.empty_at.saturating_sub(self.drained_by(now)))
            .map_or(EXACT_MAX, |subunits| subunits.min(EXACT_MAX))
    }

    /// The level of a bucket with `subunits` at `now`. Its `empty_at` is at most one tick after the last representable one.
    pub(crate) fn level(&self, subunits: u64, now: Timestamp) -> Level {
        self.level_at(self.drained_by(now).saturating_add(u128::from(subunits)))
    }

    /// The level of a bucket that is empty when this many subunits have drained since the epoch.
    pub(crate) fn level_at(&self, empty_at: u128) -> Level {
        let latest =
            u128::from(EXACT_MAX.saturating_add(1)).saturating_mul(u128::from(self.rate.drain.get()));
        Level { empty_at: empty_at.min(latest) }
    }

    /// The subunits drained from the epoch to `now`.
    pub(crate) fn drained_by(&self, now: Timestamp) -> u128 {
        u128::from(self.rate.tick.of(now)).saturating_mul(u128::from(self.rate.drain.get()))
    }

    /// The largest fill level at which `cost` still fits; `None` if it never fits.
    fn room_for(&self, cost: Cost) -> Option<u64> {
        self.capacity_subunits.checked_sub(self.subunits_of(cost)).map(|room| room.min(self.max_backlog))
    }

    fn filled(&self, subunits: u64, cost: Cost) -> u64 {
        subunits.saturating_add(self.subunits_of(cost)).min(EXACT_MAX)
    }
}

fn gcd(a: NonZeroU64, b: NonZeroU64) -> NonZeroU64 {
    match NonZeroU64::new(a.get() % b) {
        Some(rest) => gcd(b, rest),
        None => b,
    }
}
