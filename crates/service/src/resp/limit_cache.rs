//! Limits that requests carry, by their parameters.

use thiserror::Error;
use tidegate_core::{Algorithm, Limit, LimitError, Spec, TimeSpan};

/// The number of limits that a worker remembers. Most applications use a few.
const SLOTS: usize = 256;

/// The limit of a `CL.THROTTLE` command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitParameters {
    pub(crate) max_burst: u64,
    pub(crate) count: u64,
    /// In seconds.
    pub(crate) period: u64,
}

/// Why the limit of a command cannot be used.
#[derive(Debug, Error)]
pub(crate) enum LimitParametersError {
    #[error("count must be positive")]
    ZeroCount,
    #[error("period must be positive")]
    ZeroPeriod,
    #[error("period is too long, at most {max} seconds are supported")]
    LongPeriod { max: u64 },
    #[error("max_burst is too large")]
    LargeBurst,
    #[error(
        "{count} per {period} s with a burst of {burst} cannot be counted exactly; \
         use a smaller count or burst, a shorter period or rounder numbers"
    )]
    Inexact { count: u64, period: u64, burst: u64 },
}

impl LimitParameters {
    pub(crate) fn limit(self) -> Result<Limit, LimitParametersError> {
        let Self { max_burst, count, period } = self;
        let max = TimeSpan::MAX.as_micros() / 1_000_000;
        if count == 0 {
            return Err(LimitParametersError::ZeroCount);
        }
        if period == 0 {
            return Err(LimitParametersError::ZeroPeriod);
        }
        if period > max {
            return Err(LimitParametersError::LongPeriod { max });
        }
        let burst = max_burst.checked_add(1).ok_or(LimitParametersError::LargeBurst)?;
        let spec = Spec { burst: Some(burst), ..Spec::new(count, TimeSpan::from_secs(period)) };
        let limit = Limit::new(Algorithm::TokenBucket, spec);
        limit.map_err(|_: LimitError| LimitParametersError::Inexact { count, period, burst })
    }

    fn slot(self) -> usize {
        let mixed = [self.count, self.period].into_iter().fold(self.max_burst, |mixed, number| {
            (mixed ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        });
        usize::try_from(mixed % SLOTS as u64).unwrap_or_default()
    }
}

/// The limits that were used last. Deriving a limit from its parameters costs as much as a decision.
#[derive(Debug)]
pub(crate) struct LimitCache {
    slots: Box<[Option<(LimitParameters, Limit)>]>,
}

impl Default for LimitCache {
    fn default() -> Self {
        Self { slots: vec![None; SLOTS].into() }
    }
}

impl LimitCache {
    /// The limit with these parameters.
    pub(crate) fn get(&mut self, parameters: LimitParameters) -> Result<Limit, LimitParametersError> {
        let slot = self.slots.get_mut(parameters.slot());
        if let Some(Some((known, limit))) = slot.as_deref()
            && *known == parameters
        {
            return Ok(*limit);
        }
        let limit = parameters.limit()?;
        if let Some(slot) = slot {
            *slot = Some((parameters, limit));
        }
        Ok(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_cache_many_limits_returns_the_limit_of_the_parameters() {
        let mut cache = LimitCache::default();
        for round in 0..2 {
            for number in 1..2_000 {
                let parameters = LimitParameters { max_burst: number, count: number % 7 + 1, period: 60 };
                let limit = cache.get(parameters).unwrap();
                assert_eq!(limit, parameters.limit().unwrap(), "round {round}, {number}");
            }
        }
    }

    #[test]
    fn limit_parameters_without_exact_limit_state_the_reason() {
        let error = |max_burst, count, period| {
            LimitParameters { max_burst, count, period }.limit().unwrap_err().to_string()
        };
        assert_eq!(error(1, 0, 1), "count must be positive");
        assert_eq!(error(1, 1, 0), "period must be positive");
        assert_eq!(error(u64::MAX, 1, 1), "max_burst is too large");
        assert!(error(1, 1, u64::MAX).starts_with("period is too long"));
        assert!(error(i64::MAX as u64, i64::MAX as u64, 86_399).contains("cannot be counted exactly"));
    }
}
