//! A limit as it is announced to clients: a quota of units per window of whole seconds.
//!
//! `RateLimit-Policy` announces `q` units per `w` seconds, `RateLimit` how many are left (`r`) and until when (`t`); the
//! other styles and the body of a rejection report the same numbers. Not every limit has that form:
//!
//! - A token bucket admits `burst` at once and refills it in `burst × window / requests`: that is its quota. A leaky
//!   bucket is announced likewise, with no more than `requests`. What a token bucket lends is part of the quota, and so is the
//!   time in which it is repaid.
//! - A window below one second is announced as an equal quota per second.
//! - A sliding window counter forgets a request only after up to two windows. No `t` is longer than its `w`.

use std::num::NonZeroU64;

use tidegate_core::{Algorithm, Limit, LimitReport, LimitUnit, Outcome, Spec, TimeSpan, Verdict};

/// The largest integer of a structured field (RFC 9651).
const LARGEST: u64 = 999_999_999_999_999;

/// Microseconds of a second.
const SECOND: u64 = 1_000_000;

/// A limit as it is announced to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    units: u64,
    window: TimeSpan,
    unit: LimitUnit,
    /// The limit's capacity. An outcome with another limit comes from an override.
    capacity: u64,
    /// The limit's own window in whole seconds.
    own_window: TimeSpan,
    /// The window in microseconds if it is below one second.
    fraction: Option<NonZeroU64>,
}

impl Quota {
    /// The quota of `limit`, which was built from `spec`.
    pub fn new(limit: &Limit, spec: &Spec) -> Self {
        let requests = spec.requests.max(1);
        let micros = spec.window.as_micros();
        let (capacity, own_window) = (limit.capacity(), spec.window.as_secs_ceil().max(1));
        let fraction = NonZeroU64::new(micros).filter(|micros| micros.get() < SECOND);
        let announced = match limit.algorithm() {
            Algorithm::LeakyBucket => capacity.min(requests),
            _ => capacity,
        };
        let is_bucket = matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let window = if is_bucket {
            // A fraction of a second is announced as a whole one, and the quota with it.
            let own = u128::from(if fraction.is_some() { SECOND } else { micros });
            let price =
                spec.borrow.map_or(0, |borrow| borrow.units.saturating_mul(borrow.repay.saturating_sub(1)));
            let refill = (u128::from(announced) + u128::from(price)) * own;
            let seconds = refill.div_ceil(u128::from(requests) * u128::from(SECOND));
            u64::try_from(seconds).unwrap_or(u64::MAX).max(1)
        } else {
            own_window
        };
        let [window, own_window] = [window, own_window].map(TimeSpan::from_secs);
        let mut quota = Self { units: 0, window, unit: LimitUnit::Requests, capacity, own_window, fraction };
        quota.units = quota.per_second(announced);
        quota
    }

    /// The same quota in other units.
    #[must_use]
    pub fn with_unit(self, unit: LimitUnit) -> Self {
        Self { unit, ..self }
    }

    /// The report of an unused limit.
    pub fn full_report<'n>(&self, name: &'n str) -> LimitReport<'n> {
        let Self { units: quota, window, unit, .. } = *self;
        let (window, reset_after) = (Some(window), TimeSpan::ZERO);
        LimitReport { name, quota, window, remaining: quota, reset_after, retry_after: None, unit }
    }

    /// The report of `outcome`.
    #[inline]
    pub fn report<'n>(&self, name: &'n str, outcome: &Outcome) -> LimitReport<'n> {
        let (quota, window) = if outcome.limit == self.capacity {
            (self.units, self.window)
        } else {
            // An override, of which the outcome gives only the limit.
            (self.per_second(outcome.limit), self.own_window)
        };
        let (reset_after, retry_after) = match outcome.verdict {
            Verdict::NotUntil { retry_after } => {
                (outcome.reset_after.min(window).max(retry_after), Some(retry_after))
            }
            _ => (outcome.reset_after.min(window), None),
        };
        let remaining = self.per_second(outcome.remaining).min(quota);
        LimitReport {
            name,
            quota,
            window: Some(window),
            remaining,
            reset_after,
            retry_after,
            unit: self.unit,
        }
    }

    /// The report of a limit whose client is locked out for `left`, with the limit's own `outcome` if it is known.
    pub fn report_locked_out<'n>(
        &self,
        name: &'n str,
        outcome: Option<&Outcome>,
        left: TimeSpan,
    ) -> LimitReport<'n> {
        let report = outcome.map_or_else(|| self.full_report(name), |outcome| self.report(name, outcome));
        let is_never = outcome.is_some_and(|outcome| outcome.verdict == Verdict::Never);
        let until = left.max(report.retry_after.unwrap_or(TimeSpan::ZERO));
        // A cost above the limit is still rejected after the lock-out.
        let (reset_after, retry_after) =
            if is_never { (left, None) } else { (report.reset_after.max(until), Some(until)) };
        LimitReport { remaining: 0, reset_after, retry_after, ..report }
    }

    /// Converts units of a window below one second to units per second, rounding down.
    fn per_second(&self, units: u64) -> u64 {
        let scaled = match self.fraction {
            None => units,
            Some(micros) => {
                let scaled = u128::from(units) * u128::from(SECOND) / u128::from(micros.get());
                u64::try_from(scaled).unwrap_or(LARGEST)
            }
        };
        scaled.min(LARGEST)
    }
}

#[cfg(test)]
mod tests;
