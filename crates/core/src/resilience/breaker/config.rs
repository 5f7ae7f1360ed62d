//! When a breaker opens and closes.

use thiserror::Error;

use crate::resilience::call_window::WindowLength;
use crate::resilience::ratio::Ratio;
use crate::time::TimeSpan;

/// When a breaker opens and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BreakerConfig {
    /// Opens after this many failures in a row.
    pub failures: Option<u32>,
    /// Opens when this share of the calls in the window has failed.
    pub failure_rate: Option<Ratio>,
    /// Opens when a share of the calls in the window was slow.
    pub slow: Option<SlowCalls>,
    /// The calls that rates are computed from.
    pub window: WindowLength,
    /// Rates are not considered below this number of calls in the window.
    pub min_calls: u32,
    /// How long the breaker stays open at first.
    pub open_for: TimeSpan,
    /// The open time doubles with each failed probe, up to this. Equal to `open_for`: it does not grow.
    pub max_open_for: TimeSpan,
    /// Each open time is longer by a random share of itself, up to this one, so that callers do not probe together.
    pub open_jitter: Ratio,
    /// Probes that may be in flight.
    pub probes: u32,
    /// Successful probes that close the breaker.
    pub successes: u32,
}

/// Which calls are slow, and how many of them open a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlowCalls {
    /// Calls that take at least this long are slow.
    pub over: TimeSpan,
    /// The share of slow calls in the window that opens the breaker.
    pub rate: Ratio,
}

impl Default for BreakerConfig {
    /// Opens after 5 failures in a row, for 30 seconds; then one successful probe closes it.
    fn default() -> Self {
        let open_for = TimeSpan::from_secs(30);
        Self {
            failures: Some(5),
            failure_rate: None,
            slow: None,
            window: WindowLength::Time(TimeSpan::from_secs(10)),
            min_calls: 20,
            open_for,
            max_open_for: open_for,
            open_jitter: Ratio::from_percent(10),
            probes: 1,
            successes: 1,
        }
    }
}

impl BreakerConfig {
    /// Opens after this many failures in a row.
    pub fn failures(self, failures: u32) -> Self {
        Self { failures: Some(failures), ..self }
    }

    /// Opens also when this share of the calls in the window has failed.
    pub fn failure_rate(self, rate: Ratio) -> Self {
        Self { failure_rate: Some(rate), ..self }
    }

    /// Opens also when `rate` of the calls in the window took `over` or longer.
    pub fn slow(self, over: impl Into<TimeSpan>, rate: Ratio) -> Self {
        Self { slow: Some(SlowCalls { over: over.into(), rate }), ..self }
    }

    /// Computes rates from these calls, if there are at least `min_calls`.
    pub fn window(self, window: WindowLength, min_calls: u32) -> Self {
        Self { window, min_calls, ..self }
    }

    /// Stays open this long, each time.
    pub fn open_for(self, open_for: impl Into<TimeSpan>) -> Self {
        let open_for = open_for.into();
        Self { open_for, max_open_for: open_for, ..self }
    }

    /// Stays open twice as long after each failed probe, up to this.
    pub fn max_open_for(self, max_open_for: impl Into<TimeSpan>) -> Self {
        Self { max_open_for: max_open_for.into(), ..self }
    }

    /// Closes after this many successful probes, of which as many may be in flight as `probes` says.
    pub fn successes(self, successes: u32, probes: u32) -> Self {
        Self { probes, successes, ..self }
    }
}

/// Why a breaker configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BreakerConfigError {
    /// Neither a number of failures nor a rate is set, so the breaker would never open.
    #[error("a breaker without `failures`, `failure_rate` and `slow` would never open; set one of them")]
    NeverOpens,
    /// A number, a rate or a time span that must be positive is zero.
    #[error("`{field}` must be positive")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// `max_open_for` is shorter than `open_for`.
    #[error("the longest open time, {max_open_for:?}, is shorter than the first, {open_for:?}")]
    MaxOpenBelowOpen {
        /// `open_for`.
        open_for: TimeSpan,
        /// `max_open_for`.
        max_open_for: TimeSpan,
    },
    /// `min_calls` is more than a window of calls holds, so a rate would never count.
    #[error("`min_calls` is {min_calls}, but the window holds only {window} calls")]
    MinCallsBeyondWindow {
        /// `min_calls`.
        min_calls: u32,
        /// The calls in the window.
        window: u32,
    },
}

impl BreakerConfig {
    pub(super) fn validate(&self) -> Result<(), BreakerConfigError> {
        if self.failures.is_none() && self.failure_rate.is_none() && self.slow.is_none() {
            return Err(BreakerConfigError::NeverOpens);
        }
        let zero = [
            ("failures", self.failures == Some(0)),
            ("failure_rate", self.failure_rate.is_some_and(Ratio::is_zero)),
            ("slow.over", self.slow.is_some_and(|slow| slow.over.is_zero())),
            ("slow.rate", self.slow.is_some_and(|slow| slow.rate.is_zero())),
            ("window", matches!(self.window, WindowLength::Calls(0) | WindowLength::Time(TimeSpan::ZERO))),
            ("min_calls", self.min_calls == 0),
            ("open_for", self.open_for.is_zero()),
            ("probes", self.probes == 0),
            ("successes", self.successes == 0),
        ];
        if let Some((field, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(BreakerConfigError::Zero { field });
        }
        let (open_for, max_open_for) = (self.open_for, self.max_open_for);
        if max_open_for < open_for {
            return Err(BreakerConfigError::MaxOpenBelowOpen { open_for, max_open_for });
        }
        match self.window {
            WindowLength::Calls(window) if self.has_rate() && self.min_calls > window => {
                Err(BreakerConfigError::MinCallsBeyondWindow { min_calls: self.min_calls, window })
            }
            _ => Ok(()),
        }
    }

    pub(super) const fn has_rate(&self) -> bool {
        self.failure_rate.is_some() || self.slow.is_some()
    }

    /// The open time after `failed_probes` half-open states that failed in a row.
    pub(super) fn open_time(&self, failed_probes: u32, random: u64) -> TimeSpan {
        let factor = 1_u64.checked_shl(failed_probes).unwrap_or(u64::MAX);
        let open = self.open_for.as_micros().saturating_mul(factor).min(self.max_open_for.as_micros());
        let jitter = u128::from(self.open_jitter.of(open)).saturating_mul(u128::from(random)) >> 64_u32;
        TimeSpan::from_micros(open.saturating_add(u64::try_from(jitter).unwrap_or_default()))
    }
}
