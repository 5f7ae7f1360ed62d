//! A bucket that fills with what is spent and drains at an exact rate.
//!
//! Token bucket and leaky bucket are one bucket seen from two sides: both remember how full it is and when
//! that was. To keep every rational rate exact, the content is counted in *drops*: with `g` the greatest
//! common divisor of `requests` and the window in ticks, one unit of cost is `window / g` drops and each
//! tick drains `requests / g` of them. Nothing is ever rounded, so nothing drifts.

use core::num::NonZeroU64;

use crate::decision::{Outcome, Verdict};
use crate::limit::{Cost, LimitError, Spec};
use crate::time::{EXACT_MAX, Span, Tick, Timestamp};

/// An exact rate: a unit of cost is `unit` drops, and each tick drains `drain` drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    tick: Tick,
    unit: NonZeroU64,
    drain: NonZeroU64,
}

impl Rate {
    /// The tick in which this rate sees time.
    pub const fn tick(&self) -> Tick {
        self.tick
    }

    /// Drops that make up one unit of cost.
    pub const fn unit(&self) -> NonZeroU64 {
        self.unit
    }

    /// Drops that drain with each tick.
    pub const fn drain(&self) -> NonZeroU64 {
        self.drain
    }

    fn of(spec: &Spec, tick: Tick) -> Option<Self> {
        let requests = NonZeroU64::new(spec.requests)?;
        let period = NonZeroU64::new(tick.count(spec.window)?)?;
        let divisor = gcd(requests, period);
        let unit = NonZeroU64::new(period.get() / divisor)?;
        let drain = NonZeroU64::new(requests.get() / divisor)?;
        (drain.get() <= EXACT_MAX).then_some(Self { tick, unit, drain })
    }
}

/// How full a bucket was, and when. The default is a bucket never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Level {
    drops: u64,
    at: u64,
}

/// A rate and a capacity: all that token bucket and leaky bucket share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    rate: Rate,
    capacity: u64,
    /// `capacity` in drops.
    brim: u64,
}

impl Bucket {
    /// A bucket of `capacity` units, in the finest tick that holds it exactly.
    pub(crate) fn new(spec: &Spec, capacity: u64) -> Result<Self, LimitError> {
        spec.validate()?;
        let fitting = Tick::ALL.into_iter().find_map(|tick| {
            let rate = Rate::of(spec, tick)?;
            let brim = capacity.checked_mul(rate.unit.get()).filter(|brim| *brim <= EXACT_MAX)?;
            Some(Self { rate, capacity, brim })
        });
        fitting.ok_or(LimitError::NotRepresentable { requests: spec.requests, window: spec.window, capacity })
    }

    pub(crate) const fn rate(&self) -> &Rate {
        &self.rate
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The level as it is at `now`; earlier than what was seen counts as no time passed.
    fn settle(&self, level: Level, now: Timestamp) -> Level {
        let at = self.rate.tick.of(now).max(level.at);
        let drained = at.saturating_sub(level.at).saturating_mul(self.rate.drain.get());
        Level { drops: level.drops.saturating_sub(drained), at }
    }

    /// The first instant at which at most `drops` are left.
    fn when_down_to(&self, level: Level, drops: u64) -> Timestamp {
        let ticks = level.drops.saturating_sub(drops).div_ceil(self.rate.drain.get());
        self.rate.tick.start(level.at.saturating_add(ticks))
    }

    /// How `cost` fits, and how full the bucket is before it (what a leaky bucket's wait is made of).
    pub(crate) fn judge(&self, level: &Level, now: Timestamp, cost: Cost) -> (Outcome, Level) {
        let before = self.settle(*level, now);
        let mut after = before;
        let verdict = match self.room_for(cost) {
            None => Verdict::Never,
            Some(room) if before.drops <= room => {
                after.drops = self.filled(before.drops, cost);
                Verdict::PASS
            }
            Some(room) => Verdict::NotUntil { retry_after: self.when_down_to(before, room).since(now) },
        };
        let outcome = Outcome {
            verdict,
            limit: self.capacity,
            remaining: self.brim.saturating_sub(after.drops) / self.rate.unit,
            reset_after: self.until_empty(&after, now),
        };
        (outcome, before)
    }

    /// The most drops beside which `cost` still fits; `None` if it fits beside nothing.
    fn room_for(&self, cost: Cost) -> Option<u64> {
        if cost.get() > self.capacity {
            return None;
        }
        self.brim.checked_sub(cost.get().saturating_mul(self.rate.unit.get()))
    }

    fn filled(&self, drops: u64, cost: Cost) -> u64 {
        let added = cost.get().saturating_mul(self.rate.unit.get());
        drops.saturating_add(added).min(EXACT_MAX)
    }

    /// Records `cost`, even over the brim.
    pub(crate) fn charge(&self, level: &mut Level, now: Timestamp, cost: Cost) {
        *level = self.settle(*level, now);
        level.drops = self.filled(level.drops, cost);
    }

    /// Takes back what may still be there of `cost`, charged at `charged`.
    ///
    /// The bucket may have been empty before that charge, so all that drained since may have been its drops:
    /// only the rest is given back. More would let a full burst pass twice in one instant.
    pub(crate) fn refund(&self, level: &mut Level, charged: Timestamp, now: Timestamp, cost: Cost) {
        let settled = self.settle(*level, now);
        let drained =
            settled.at.saturating_sub(self.rate.tick.of(charged)).saturating_mul(self.rate.drain.get());
        let held = self.filled(0, cost).saturating_sub(drained);
        *level = Level { drops: settled.drops.saturating_sub(held), at: settled.at };
    }

    /// Takes back `cost` if the one that departs at `departure` is the last to depart. Where several depart
    /// within one tick nobody can tell which is the last, and none is taken back.
    pub(crate) fn withdraw_last(&self, level: &mut Level, departure: Timestamp, now: Timestamp, cost: Cost) {
        if self.rate.unit < self.rate.drain {
            return;
        }
        *level = self.settle(*level, now);
        let departs = self.rate.tick.of(departure);
        let drain = self.rate.drain.get();
        let held = self.filled(0, cost);
        // The bucket runs dry at at + drops/drain; its last departure lies held/drain before that.
        let dry = level.at.saturating_sub(departs).saturating_mul(drain).saturating_add(level.drops);
        let dry_if_last = departs.saturating_sub(level.at).saturating_mul(drain).saturating_add(held);
        if dry <= dry_if_last {
            level.drops = level.drops.saturating_sub(held);
        }
    }

    /// The level under this bucket of what was spent under `old`: whole units, a part counting as one.
    pub(crate) fn rebase(&self, old: &Self, level: &Level, now: Timestamp) -> Level {
        if self.rate == old.rate {
            return *level;
        }
        let settled = old.settle(*level, now);
        let units = settled.drops.div_ceil(old.rate.unit.get());
        Level {
            drops: self.filled(0, Cost::new(units)),
            at: self.rate.tick.of(now.max(old.rate.tick.start(settled.at))),
        }
    }

    /// How long until nothing is left; no time at all if nothing is.
    pub(crate) fn until_empty(&self, level: &Level, now: Timestamp) -> Span {
        if level.drops == 0 { Span::ZERO } else { self.empty_at(level).since(now) }
    }

    /// The first instant at which nothing is left.
    pub(crate) fn empty_at(&self, level: &Level) -> Timestamp {
        self.when_down_to(*level, 0)
    }
}

fn gcd(a: NonZeroU64, b: NonZeroU64) -> NonZeroU64 {
    match NonZeroU64::new(a.get() % b) {
        Some(rest) => gcd(b, rest),
        None => b,
    }
}
