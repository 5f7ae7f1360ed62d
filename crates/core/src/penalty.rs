//! Lock-outs for repeated violations. Their length doubles, and they decay while the client behaves well.
//!
//! A *violation* is a request that a rule rejected. The `after`th violation starts a lock-out of length `first`. Each
//! further lock-out is twice as long as the one before, up to `longest`. Violations during a lock-out change nothing.
//!
//! Good behaviour is time without a violation, counted from the last violation or from the end of the last lock-out. Each
//! `forget` of good behaviour removes one violation. When no violation is left, it removes the lock-out levels one by one;
//! a level takes as long as its lock-out, but at least `forget`. When nothing is left, the client counts as new.

use thiserror::Error;

use crate::time::{TimeSpan, Timestamp};

/// The parameters of a lock-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalty {
    after: u32,
    first: TimeSpan,
    longest: TimeSpan,
    forget: TimeSpan,
}

/// Why a penalty is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PenaltyError {
    /// `after` is 0.
    #[error("a lock-out after 0 violations would lock out every client; use at least 1")]
    ZeroAfter,
    /// A lock-out of zero length, or `forget` is zero.
    #[error("the length of a lock-out and the time to forget a violation must be positive")]
    ZeroSpan,
    /// The longest lock-out is shorter than the first.
    #[error("the longest lock-out, {longest:?}, is shorter than the first, {first:?}")]
    LongestBelowFirst {
        /// The first lock-out.
        first: TimeSpan,
        /// The longest.
        longest: TimeSpan,
    },
}

/// The violations and lock-outs of a client under a rule. The default is a new client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PenaltyState {
    /// Violations since the last lock-out, minus the forgotten ones.
    pub violations: u32,
    /// The lock-out level: 1 is the first lock-out, 2 is twice as long; minus the forgotten levels.
    pub level: u32,
    /// The start of good behaviour: the last violation, or the end of the last lock-out.
    pub since: Timestamp,
    /// When the last lock-out ends or ended.
    pub locked_until: Timestamp,
    /// The length of the last lock-out.
    pub locked_for: TimeSpan,
}

impl PenaltyState {
    /// The remaining lock-out at `now`; `None` if the client is not locked out.
    pub fn lock_out(&self, now: Timestamp) -> Option<TimeSpan> {
        Some(self.locked_until.since(now)).filter(|left| !left.is_zero())
    }

    /// Adjusts the state to a clock that may have gone back since it was written: no lock-out lasts longer from `now` on than
    /// its full length, and no violation lies in the future.
    #[must_use]
    pub fn rebase(self, now: Timestamp) -> Self {
        let is_lock_out = self.since == self.locked_until;
        let latest = if is_lock_out { now + self.locked_for } else { now };
        let ahead = self.since.since(latest);
        Self { since: self.since - ahead, locked_until: self.locked_until - ahead, ..self }
    }
}

impl Penalty {
    /// A lock-out of `first` after `after` violations, doubling up to `longest`. A violation is forgotten after `forget`.
    pub fn new(
        after: u32,
        first: TimeSpan,
        longest: TimeSpan,
        forget: TimeSpan,
    ) -> Result<Self, PenaltyError> {
        if after == 0 {
            return Err(PenaltyError::ZeroAfter);
        }
        if first.is_zero() || forget.is_zero() {
            return Err(PenaltyError::ZeroSpan);
        }
        if longest < first {
            return Err(PenaltyError::LongestBelowFirst { first, longest });
        }
        Ok(Self { after, first, longest, forget })
    }

    /// The number of violations that start a lock-out.
    pub const fn after(&self) -> u32 {
        self.after
    }

    /// The first lock-out.
    pub const fn first(&self) -> TimeSpan {
        self.first
    }

    /// The longest lock-out.
    pub const fn longest(&self) -> TimeSpan {
        self.longest
    }

    /// The lock-out at `level`: the first at 1, twice as long at 2.
    pub fn length(&self, level: u32) -> TimeSpan {
        let doublings = level.saturating_sub(1);
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        TimeSpan::from_micros(self.first.as_micros().saturating_mul(factor)).min(self.longest)
    }

    /// The rest of `record` at `now`, after the decay by good behaviour.
    #[must_use]
    pub fn settle(&self, record: PenaltyState, now: Timestamp) -> PenaltyState {
        let mut record = record;
        let mut good = now.since(record.since);
        if record.violations > 0 {
            let steps = good.as_micros().checked_div(self.forget.as_micros()).unwrap_or_default();
            let forgotten = u32::try_from(steps).unwrap_or(u32::MAX).min(record.violations);
            let taken = times(self.forget, forgotten);
            record.violations = record.violations.saturating_sub(forgotten);
            record.since = record.since + taken;
            good = less(good, taken);
        }
        while record.violations == 0 && record.level > 0 {
            let step = self.level_lifetime(record.level);
            if good < step {
                return record;
            }
            record.level = record.level.saturating_sub(1);
            record.since = record.since + step;
            good = less(good, step);
        }
        let is_over = record.violations == 0 && record.locked_until <= now;
        if is_over { PenaltyState::default() } else { record }
    }

    /// The state after a violation at `now`. During a lock-out nothing changes.
    #[must_use]
    pub fn violate(&self, record: PenaltyState, now: Timestamp) -> PenaltyState {
        if record.lock_out(now).is_some() {
            return record;
        }
        let mut record = self.settle(record, now);
        record.violations = record.violations.saturating_add(1);
        record.since = record.since.max(now);
        if record.violations < self.after {
            return record;
        }
        // Levels beyond the longest lock-out would only delay the decay.
        let level = if self.length(record.level) < self.longest || record.level == 0 {
            record.level.saturating_add(1)
        } else {
            record.level
        };
        let length = self.length(level);
        let end = now + length;
        PenaltyState { violations: 0, level, since: end, locked_until: end, locked_for: length }
    }

    /// When `record` has decayed completely, if nothing else happens.
    pub fn expires_at(&self, record: &PenaltyState) -> Timestamp {
        let violations = record.since + times(self.forget, record.violations);
        let levels =
            (1..=record.level.min(u64::BITS)).fold(violations, |at, level| at + self.level_lifetime(level));
        levels.max(record.locked_until)
    }

    /// How much good behaviour removes `level`.
    fn level_lifetime(&self, level: u32) -> TimeSpan {
        self.length(level).max(self.forget)
    }
}

fn times(span: TimeSpan, factor: u32) -> TimeSpan {
    TimeSpan::from_micros(span.as_micros().saturating_mul(u64::from(factor)))
}

fn less(span: TimeSpan, taken: TimeSpan) -> TimeSpan {
    TimeSpan::from_micros(span.as_micros().saturating_sub(taken.as_micros()))
}
