//! The only module that reads the time.
//!
//! A caller reads the clock once per decision or batch and passes the [`Timestamp`] on.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::{TimeSpan, Timestamp};

/// A source of time.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;

    /// The current time together with a finer value for measuring durations, from one reading of the clock.
    fn read(&self) -> ClockReading {
        let at = self.now();
        ClockReading { at, nanos: at.as_micros().saturating_mul(1_000) }
    }

    /// The wall time, which may be stepped: for what other programs compare with their own clocks, never for a decision.
    fn wall_time(&self) -> Timestamp {
        self.now()
    }
}

/// One reading of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The time.
    pub at: Timestamp,
    /// Nanoseconds since an instant private to this clock.
    nanos: u64,
}

impl ClockReading {
    /// Nanoseconds since an earlier reading of the same clock.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.nanos.saturating_sub(earlier.nanos)
    }
}

/// Converts a timestamp to the standard library's type.
pub fn to_system_time(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(at.as_micros())
}

/// The system clock: set to wall time once, when it is created, and monotonic from then on.
///
/// Steps of the wall clock (by an operator, NTP or a leap second) therefore neither refill a limit nor freeze it. A reading
/// takes a few nanoseconds if the processor's counter is usable.
#[derive(Clone, Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    /// Microseconds per count, times 2^64.
    micros_per_count: u64,
    /// Nanoseconds per count, times 2^32.
    nanos_per_count: u64,
    /// The wall time at counter value zero, in microseconds; it may wrap.
    at_zero: u64,
}

/// The number of counts for calibration: an error of a nanosecond in hours.
const CALIBRATION_COUNTS: u64 = 1 << 44;

impl SystemClock {
    /// A clock that starts at the current wall time.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let nanos = u128::from(counter.delta_as_nanos(0, CALIBRATION_COUNTS));
        let micros_per_count =
            u64::try_from((nanos << 64) / (1_000 * u128::from(CALIBRATION_COUNTS))).unwrap_or(u64::MAX);
        let nanos_per_count =
            u64::try_from((nanos << 32) / u128::from(CALIBRATION_COUNTS)).unwrap_or(u64::MAX);
        let at_zero = wall_time().as_micros().wrapping_sub(micros(counter.raw(), micros_per_count));
        Self { counter, micros_per_count, nanos_per_count, at_zero }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        let micros = micros(self.counter.raw(), self.micros_per_count);
        Timestamp::from_micros(self.at_zero.wrapping_add(micros))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn read(&self) -> ClockReading {
        let counts = self.counter.raw();
        let micros = micros(counts, self.micros_per_count);
        let nanos = (u128::from(counts) * u128::from(self.nanos_per_count)) >> 32;
        let at = Timestamp::from_micros(self.at_zero.wrapping_add(micros));
        ClockReading { at, nanos: u64::try_from(nanos).unwrap_or(u64::MAX) }
    }

    fn wall_time(&self) -> Timestamp {
        wall_time()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall_time() -> Timestamp {
    Timestamp::ZERO + TimeSpan::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// One multiplication and no division, because every decision computes this.
fn micros(counts: u64, micros_per_count: u64) -> u64 {
    ((u128::from(counts) * u128::from(micros_per_count)) >> 64) as u64
}

/// A clock that moves only on request, for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock set to `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.as_micros()))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: TimeSpan) {
        self.0.fetch_add(by.as_micros(), Ordering::AcqRel);
    }

    /// Sets the clock, also backwards.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::Release);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_never_goes_back() {
        let clock = SystemClock::new();
        let mut last = clock.now();
        assert!(last > Timestamp::from_secs(1_700_000_000), "it starts at wall time");
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn clock_reading_gives_the_time_and_measures_durations() {
        let clock = SystemClock::new();
        let (first, mut last) = (clock.read(), clock.read());
        while last.at.since(first.at) < TimeSpan::from_millis(2) {
            last = clock.read();
        }
        let micros = last.at.since(first.at).as_micros();
        assert!((last.nanos_since(first) / 1_000).abs_diff(micros) <= 1, "{last:?} {first:?}");
        let manual = ManualClock::at(Timestamp::from_secs(10));
        let before = manual.read();
        manual.advance(TimeSpan::from_micros(3));
        assert_eq!(manual.read().nanos_since(before), 3_000);
        assert_eq!(before.nanos_since(manual.read()), 0);
    }

    #[test]
    fn manual_clock_moves_on_request() {
        let clock = ManualClock::at(Timestamp::from_secs(10));
        clock.advance(TimeSpan::from_secs(5));
        assert_eq!(clock.now(), Timestamp::from_secs(15));
        clock.set(Timestamp::from_secs(3));
        assert_eq!(clock.now(), Timestamp::from_secs(3));
    }
}
