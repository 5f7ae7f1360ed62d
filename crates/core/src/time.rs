//! Instants and durations, in whole microseconds that a double represents exactly.
//!
//! Redis scripts compute in doubles, which hold every integer below 2^53 exactly. Both types therefore
//! saturate at 2^53 − 1 µs (the year 2255), so that Lua can compute everything that Rust computes.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// The largest integer that Rust and Lua both represent exactly.
pub(crate) const EXACT_MAX: u64 = (1 << 53) - 1;

const MICROS_PER_MILLI: u64 = 1_000;
const MICROS_PER_SEC: u64 = 1_000_000;

/// An instant: microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const ZERO: Self = Self(0);
    /// The last instant; later ones saturate here.
    pub const MAX: Self = Self(EXACT_MAX);

    /// The instant `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(if micros > EXACT_MAX { EXACT_MAX } else { micros })
    }

    /// The instant `secs` seconds after the Unix epoch.
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(MICROS_PER_SEC))
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded up, so that an announced time is never too early.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(MICROS_PER_SEC)
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> TimeSpan {
        TimeSpan(self.0.saturating_sub(earlier.0))
    }
}

impl Add<TimeSpan> for Timestamp {
    type Output = Self;

    fn add(self, span: TimeSpan) -> Self {
        Self::from_micros(self.0.saturating_add(span.0))
    }
}

impl Sub<TimeSpan> for Timestamp {
    type Output = Self;

    fn sub(self, span: TimeSpan) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// A duration, in microseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeSpan(u64);

impl TimeSpan {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// The longest span; longer ones saturate here.
    pub const MAX: Self = Self(EXACT_MAX);

    /// A span of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(if micros > EXACT_MAX { EXACT_MAX } else { micros })
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_micros(millis.saturating_mul(MICROS_PER_MILLI))
    }

    /// A span of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(MICROS_PER_SEC))
    }

    /// The span in microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The span in whole seconds, rounded up, so that an announced wait is never too short.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(MICROS_PER_SEC)
    }

    /// Whether the span is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<TimeSpan> for Duration {
    fn from(span: TimeSpan) -> Self {
        Self::from_micros(span.0)
    }
}

impl From<Duration> for TimeSpan {
    /// Rounds up to the microsecond.
    fn from(duration: Duration) -> Self {
        Self::from_micros(u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration::from(*self).fmt(f)
    }
}

/// The resolution in which a limit measures time.
///
/// A limit uses the finest tick for which all its products are exact, so 1 per year and 10 million per second are both
/// exact. An instant belongs to the tick that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tick {
    /// 1 µs
    Micro,
    /// 1 ms
    Milli,
    /// 1 s
    Second,
}

impl Tick {
    /// Finest first: the order in which a limit searches for a tick that represents it.
    pub(crate) const ALL: [Self; 3] = [Self::Micro, Self::Milli, Self::Second];

    /// The length of one tick in microseconds.
    pub const fn micros(self) -> u64 {
        match self {
            Self::Micro => 1,
            Self::Milli => MICROS_PER_MILLI,
            Self::Second => MICROS_PER_SEC,
        }
    }

    /// The tick that contains `at`.
    pub(crate) const fn of(self, at: Timestamp) -> u64 {
        match self {
            Self::Micro => at.0,
            Self::Milli => at.0 / MICROS_PER_MILLI,
            Self::Second => at.0 / MICROS_PER_SEC,
        }
    }

    /// The first instant of tick number `tick`.
    pub(crate) const fn start(self, tick: u64) -> Timestamp {
        Timestamp::from_micros(tick.saturating_mul(self.micros()))
    }

    /// The number of ticks in `span`; `None` if it is not a whole number.
    pub(crate) const fn count(self, span: TimeSpan) -> Option<u64> {
        let whole = match self {
            Self::Micro => span.0,
            Self::Milli => span.0 / MICROS_PER_MILLI,
            Self::Second => span.0 / MICROS_PER_SEC,
        };
        if whole.saturating_mul(self.micros()) == span.0 { Some(whole) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_beyond_the_range_saturate() {
        assert_eq!(Timestamp::from_micros(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_secs(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX + TimeSpan::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::ZERO - TimeSpan::MAX, Timestamp::ZERO);
        assert_eq!(Timestamp::ZERO.since(Timestamp::MAX), TimeSpan::ZERO);
        assert_eq!(TimeSpan::from_secs(u64::MAX), TimeSpan::MAX);
        assert_eq!(TimeSpan::from(Duration::MAX), TimeSpan::MAX);
    }

    #[test]
    fn time_in_seconds_is_rounded_up() {
        assert_eq!(TimeSpan::from_micros(1).as_secs_ceil(), 1);
        assert_eq!(TimeSpan::from_secs(30).as_secs_ceil(), 30);
        assert_eq!(Timestamp::from_micros(1_000_001).as_secs_ceil(), 2);
        assert_eq!(TimeSpan::from(Duration::from_nanos(1)), TimeSpan::from_micros(1));
    }

    #[test]
    fn tick_count_of_a_span_that_is_not_a_whole_number_is_none() {
        assert_eq!(Tick::Milli.count(TimeSpan::from_micros(1_500)), None);
        assert_eq!(Tick::Milli.count(TimeSpan::from_secs(2)), Some(2_000));
        assert_eq!(Tick::Second.count(TimeSpan::from_millis(1_500)), None);
    }
}
