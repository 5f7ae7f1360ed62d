//! How long to wait before a retry.

use thiserror::Error;

use crate::time::TimeSpan;

named_enum! {
    /// How the wait before a retry is randomized. Without jitter, callers that failed together retry together.
    ///
    /// `exponential` is `base × 2^(n − 1)` before retry `n`, at most `cap`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Jitter {
        /// Exactly `exponential`.
        None = "none",
        /// Between 0 and `exponential`.
        Full = "full",
        /// Between half of `exponential` and `exponential`.
        Equal = "equal",
        /// Between `base` and three times the wait before, at most `cap`. The wait before the first retry is at most `3 × base`.
        #[default]
        Decorrelated = "decorrelated",
    }
}

/// Exponential backoff with a cap and jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    base: TimeSpan,
    cap: TimeSpan,
    jitter: Jitter,
}

/// Why a backoff is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BackoffError {
    /// The base is zero.
    #[error("the first wait before a retry must be positive")]
    ZeroBase,
    /// The cap is shorter than the base.
    #[error("the longest wait, {cap:?}, is shorter than the first, {base:?}")]
    CapBelowBase {
        /// The first wait.
        base: TimeSpan,
        /// The longest wait.
        cap: TimeSpan,
    },
}

impl Backoff {
    /// Waits that start at `base` and double up to `cap`.
    pub fn new(
        base: impl Into<TimeSpan>,
        cap: impl Into<TimeSpan>,
        jitter: Jitter,
    ) -> Result<Self, BackoffError> {
        let (base, cap) = (base.into(), cap.into());
        if base.is_zero() {
            return Err(BackoffError::ZeroBase);
        }
        if cap < base {
            return Err(BackoffError::CapBelowBase { base, cap });
        }
        Ok(Self { base, cap, jitter })
    }

    /// The first wait, without jitter.
    pub const fn base(&self) -> TimeSpan {
        self.base
    }

    /// The longest wait.
    pub const fn cap(&self) -> TimeSpan {
        self.cap
    }

    /// The jitter.
    pub const fn jitter(&self) -> Jitter {
        self.jitter
    }

    /// The waits of one call, from the first retry on.
    pub const fn delays(&self) -> BackoffDelays {
        BackoffDelays { backoff: *self, retries: 0, previous: self.base }
    }
}

/// The waits between the attempts of one call.
#[derive(Clone, Copy, Debug)]
pub struct BackoffDelays {
    backoff: Backoff,
    retries: u32,
    previous: TimeSpan,
}

impl BackoffDelays {
    /// The wait before the next retry. `random` is uniform over all of `u64`.
    pub fn next_delay(&mut self, random: u64) -> TimeSpan {
        let Backoff { base, cap, jitter } = self.backoff;
        let factor = 1_u64.checked_shl(self.retries).unwrap_or(u64::MAX);
        let exponential = TimeSpan::from_micros(base.as_micros().saturating_mul(factor)).min(cap);
        self.retries = self.retries.saturating_add(1);
        let half = TimeSpan::from_micros(exponential.as_micros().div_ceil(2));
        let triple = TimeSpan::from_micros(self.previous.as_micros().saturating_mul(3));
        let delay = match jitter {
            Jitter::None => exponential,
            Jitter::Full => uniform(TimeSpan::ZERO, exponential, random),
            Jitter::Equal => uniform(half, exponential, random),
            Jitter::Decorrelated => uniform(base, triple, random).min(cap),
        };
        self.previous = delay;
        delay
    }
}

/// A span from `low` to `high`, both included.
fn uniform(low: TimeSpan, high: TimeSpan, random: u64) -> TimeSpan {
    let width = high.as_micros().saturating_sub(low.as_micros()).saturating_add(1);
    let scaled = u128::from(width).saturating_mul(u128::from(random)) >> 64_u32;
    TimeSpan::from_micros(low.as_micros().saturating_add(u64::try_from(scaled).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: TimeSpan = TimeSpan::from_secs(1);

    fn backoff(jitter: Jitter) -> Backoff {
        Backoff::new(SECOND, TimeSpan::from_secs(30), jitter).unwrap()
    }

    #[test]
    fn backoff_without_jitter_doubles_up_to_the_cap() {
        let mut delays = backoff(Jitter::None).delays();
        let waits: [u64; 7] = core::array::from_fn(|_| delays.next_delay(u64::MAX).as_secs_ceil());
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn backoff_of_extreme_random_values_is_at_the_ends_of_its_range() {
        let first = |jitter, random| backoff(jitter).delays().next_delay(random);
        assert_eq!(first(Jitter::Full, 0), TimeSpan::ZERO);
        assert_eq!(first(Jitter::Full, u64::MAX), SECOND);
        assert_eq!(first(Jitter::Equal, 0), TimeSpan::from_millis(500));
        assert_eq!(first(Jitter::Equal, u64::MAX), SECOND);
        assert_eq!(first(Jitter::Decorrelated, 0), SECOND);
        assert_eq!(first(Jitter::Decorrelated, u64::MAX), TimeSpan::from_secs(3));
    }

    #[test]
    fn backoff_after_very_many_retries_stays_at_the_cap() {
        let mut delays = Backoff::new(SECOND, TimeSpan::MAX, Jitter::None).unwrap().delays();
        for _ in 0..100 {
            delays.next_delay(0);
        }
        assert_eq!(delays.next_delay(0), TimeSpan::MAX);
    }

    #[test]
    fn backoff_without_wait_or_with_cap_below_base_is_invalid() {
        assert_eq!(Backoff::new(TimeSpan::ZERO, SECOND, Jitter::None), Err(BackoffError::ZeroBase));
        assert!(matches!(
            Backoff::new(SECOND, TimeSpan::from_millis(1), Jitter::Full),
            Err(BackoffError::CapBelowBase { .. })
        ));
    }
}
