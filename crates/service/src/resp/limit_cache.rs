//! Limits that requests carry, by their parameters.

use thiserror::Error;
use tidegate_core::{Algorithm, Limit, LimitError, RuleId, Spec, TimeSpan};

/// The rule of `CL.THROTTLE` in metrics. No rule of a policy can have this name, because it contains quotes.
pub(crate) const RULE: RuleId = RuleId::named("\"CL.THROTTLE\"");

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

/// The limit of a command, and the rule under which its keys are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CarriedLimit {
    pub(crate) rule: RuleId,
    pub(crate) limit: Limit,
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

    /// The rule of keys with this rate. Each rate has a counter of its own, because a counter that changed its rate would drain
    /// at the faster one. Limits that differ in their burst share a counter: what was spent does not depend on it.
    fn rule(self) -> RuleId {
        let divisor = gcd(self.count, self.period);
        RuleId::from_u64(mix(RULE.as_u64(), [self.count / divisor, self.period / divisor]))
    }

    fn slot(self) -> usize {
        usize::try_from(mix(self.max_burst, [self.count, self.period]) % SLOTS as u64).unwrap_or_default()
    }
}

fn mix(seed: u64, numbers: [u64; 2]) -> u64 {
    numbers
        .into_iter()
        .fold(seed, |mixed, number| (mixed ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
}

/// The greatest common divisor; at least 1.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// The limits that were used last. Deriving a limit from its parameters costs as much as a decision.
#[derive(Debug)]
pub(crate) struct LimitCache {
    slots: Box<[Option<(LimitParameters, CarriedLimit)>]>,
}

impl Default for LimitCache {
    fn default() -> Self {
        Self { slots: vec![None; SLOTS].into() }
    }
}

impl LimitCache {
    /// The limit with these parameters.
    pub(crate) fn get(&mut self, parameters: LimitParameters) -> Result<CarriedLimit, LimitParametersError> {
        let slot = self.slots.get_mut(parameters.slot());
        if let Some(Some((known, limit))) = slot.as_deref()
            && *known == parameters
        {
            return Ok(*limit);
        }
        let limit = CarriedLimit { rule: parameters.rule(), limit: parameters.limit()? };
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
                assert_eq!(limit.limit, parameters.limit().unwrap(), "round {round}, {number}");
            }
        }
    }

    #[test]
    fn rule_of_a_limit_depends_on_its_rate_only() {
        let rule = |max_burst, count, period| LimitParameters { max_burst, count, period }.rule();
        assert_eq!(rule(1, 30, 60), rule(99, 1, 2));
        for (count, period) in [(200, 1), (100, 86_400), (60, 30), (1, 1), (86_400, 100)] {
            assert_ne!(rule(1, 30, 60), rule(1, count, period), "{count} per {period}");
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
