//! A limit as clients are told of it: a quota of so many units per so many whole seconds.
//!
//! `RateLimit-Policy` announces `q` units per `w` seconds, `RateLimit` how many are left (`r`) and until when (`t`); the
//! other styles and the body of a rejection report the same numbers. What a limit counts is not always of that form:
//!
//! - A token bucket admits `burst` at once and refills it in `burst × window / requests`: that is its quota. A leaky
//!   bucket is announced likewise, with no more than `requests`.
//! - A window below one second is announced as an equal quota per second.
//! - A sliding window counter forgets a request only after up to two windows. No `t` is longer than its `w`.

use std::fmt;
use std::num::NonZeroU64;

use tidegate_core::{Algorithm, Limit, Outcome, Span, Spec, Verdict};

use crate::quantity::size_text;

/// The largest integer of a structured field (RFC 9651).
const LARGEST: u64 = 999_999_999_999_999;

/// Microseconds of a second.
const SECOND: u64 = 1_000_000;

/// A limit as it is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    limit: u64,
    window: u64,
    unit: QuotaUnit,
    /// The limit's capacity: an outcome with another comes from an override.
    capacity: u64,
    /// Whole seconds of the limit's own window.
    own_window: u64,
    /// The window in microseconds if it is below one second.
    fraction: Option<NonZeroU64>,
}

/// What a quota counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaUnit {
    /// Requests.
    #[default]
    Requests,
    /// So many bytes of the content of requests.
    Content(u64),
    /// Whatever requests or responses say they cost.
    Cost,
    /// Requests that are served at the same time.
    ConcurrentRequests,
}

impl QuotaUnit {
    /// Whether a client that finds no unit takes it for this one.
    pub fn is_default(self) -> bool {
        self == Self::Requests
    }
}

impl fmt::Display for QuotaUnit {
    /// As the parameter `qu` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests => f.write_str("requests"),
            Self::Content(1) => f.write_str("content-bytes"),
            Self::Content(bytes) => write!(f, "content-{}", size_text(*bytes)),
            Self::Cost => f.write_str("cost-units"),
            Self::ConcurrentRequests => f.write_str("concurrent-requests"),
        }
    }
}

/// What one response announces of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaStatus {
    /// Units per window: `q`.
    pub limit: u64,
    /// The window in seconds: `w`; a concurrency limit has none.
    pub window: Option<u64>,
    /// What the units are: `qu`.
    pub unit: QuotaUnit,
    /// Units that are left: `r`, at most `limit`.
    pub remaining: u64,
    /// How long until the limit admits the request if it rejects it, otherwise until all of it is left again. Where the
    /// limit rejects, this may be longer than the window.
    pub reset_after: Span,
}

impl QuotaStatus {
    /// A concurrency limit of which nothing is left: a request may end at any time.
    pub fn exhausted_concurrency(limit: u32) -> Self {
        let unit = QuotaUnit::ConcurrentRequests;
        Self { limit: limit.into(), window: None, unit, remaining: 0, reset_after: Span::from_secs(1) }
    }

    /// `t` in seconds: never longer than the window.
    pub fn reset_seconds(&self) -> u64 {
        self.reset_after.as_secs_ceil().min(self.window.unwrap_or(LARGEST))
    }
}

impl Quota {
    /// The quota of `limit`, made of `spec`.
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
            let refill = u128::from(announced) * own;
            refill.div_ceil(u128::from(requests) * u128::from(SECOND))
        } else {
            u128::from(own_window)
        };
        let window = u64::try_from(window).map_or(LARGEST, |window| window.clamp(1, LARGEST));
        let mut quota = Self { limit: 0, window, unit: QuotaUnit::Requests, capacity, own_window, fraction };
        quota.limit = quota.per_second(announced);
        quota
    }

    /// The same quota in other units.
    #[must_use]
    pub fn counting(self, unit: QuotaUnit) -> Self {
        Self { unit, ..self }
    }

    /// What is announced where nothing is known but the limit: all of it is left.
    pub fn whole(&self) -> QuotaStatus {
        let Self { limit, window, unit, .. } = *self;
        QuotaStatus { limit, window: Some(window), unit, remaining: limit, reset_after: Span::ZERO }
    }

    /// What is announced of `outcome`.
    #[inline]
    pub fn status(&self, outcome: &Outcome) -> QuotaStatus {
        let (limit, window) = if outcome.limit == self.capacity {
            (self.limit, self.window)
        } else {
            // An override: an outcome says no more of it.
            (self.per_second(outcome.limit), self.own_window)
        };
        let reset_after = match outcome.verdict {
            Verdict::NotUntil { retry_after } => retry_after,
            _ => outcome.reset_after.min(Span::from_secs(window)),
        };
        let remaining = self.per_second(outcome.remaining).min(limit);
        QuotaStatus { limit, window: Some(window), unit: self.unit, remaining, reset_after }
    }

    /// What is announced of a limit that admits nothing for as long as a lock-out lasts, and of its `outcome` where that
    /// is known.
    pub fn locked_out(&self, outcome: Option<&Outcome>, left: Span) -> QuotaStatus {
        let status = outcome.map_or_else(|| self.whole(), |outcome| self.status(outcome));
        let reset_after = match outcome.map(|outcome| outcome.verdict) {
            Some(Verdict::NotUntil { retry_after }) => left.max(retry_after),
            _ => left,
        };
        QuotaStatus { remaining: 0, reset_after, ..status }
    }

    /// So many units of a window below one second as units per second, rounded down.
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
