//! The part of a limit that one of several nodes enforces on its own.

use crate::bucket::{Bucket, Rate};
use crate::lending::Borrow;
use crate::limit::{AlgorithmKind, Limit, Spec};
use crate::time::{EXACT_MAX, TimeSpan};

impl Limit {
    /// The part `part / of` of this limit, for one of `of / part` nodes that share it without talking to each other.
    ///
    /// It admits at least one request, and never a higher rate than the exact part. Windows admit the whole requests of
    /// the part; if that is less than one, one request per proportionally longer window. Buckets keep the exact rate, with a
    /// longer period, and the whole units of their burst, at least one; the longest wait stays. A rate that cannot be counted
    /// exactly becomes the next smaller one that can. A part of 0 counts as 1, and a part above the whole as the whole.
    pub fn share(&self, part: u64, of: u64) -> Self {
        let part = part.max(1);
        if part >= of {
            return *self;
        }
        let share = LimitShare { part, of };
        let shared = match self.kind() {
            AlgorithmKind::TokenBucket(bucket) => {
                let borrow = bucket.borrow();
                let burst = self.capacity().saturating_sub(borrow.map_or(0, |borrow| borrow.units));
                let exact = BucketShare {
                    borrow: borrow.and_then(|borrow| share.borrow(borrow)),
                    ..share.bucket(bucket.rate(), burst)
                };
                self.try_bucket(&exact, None)
            }
            AlgorithmKind::LeakyBucket(bucket) => {
                self.try_bucket(&share.bucket(bucket.rate(), self.capacity()), Some(max_wait(&bucket.0)))
            }
            AlgorithmKind::FixedWindow(limit) => self.try_spec(share.window(self.capacity(), limit.window())),
            AlgorithmKind::SlidingLog(limit) => self.try_spec(share.window(self.capacity(), limit.window())),
            AlgorithmKind::SlidingCounter(limit) => {
                self.try_spec(share.window(self.capacity(), limit.window()))
            }
        };
        // Every kind has a representable candidate, so this limit itself is never the result.
        shared.unwrap_or(*self)
    }

    fn try_spec(&self, spec: Spec) -> Option<Self> {
        Self::new(self.algorithm(), spec).ok()
    }

    /// Halves both sides of the fraction, rounding the rate down, until it can be counted exactly.
    fn try_bucket(&self, exact: &BucketShare, max_wait: Option<TimeSpan>) -> Option<Self> {
        let rates = (0..u128::BITS).map_while(|halvings| exact.halved(halvings));
        let fitting = rates.into_iter().find_map(|(requests, window)| {
            let BucketShare { burst, borrow, .. } = *exact;
            self.try_spec(Spec { requests, window, burst: Some(burst), max_wait, borrow })
        });
        fitting.or_else(|| {
            let window = exact.slowest();
            let burst = EXACT_MAX.checked_div(window.as_micros()).unwrap_or(1).clamp(1, exact.burst);
            self.try_spec(Spec { requests: 1, window, burst: Some(burst), max_wait, borrow: None })
        })
    }
}

/// A fraction below 1.
struct LimitShare {
    part: u64,
    of: u64,
}

impl LimitShare {
    fn window(&self, requests: u64, window: TimeSpan) -> Spec {
        match self.floor(requests) {
            0 => {
                let shared = u128::from(requests).saturating_mul(u128::from(self.part)).max(1);
                let micros = u128::from(window.as_micros()).saturating_mul(u128::from(self.of));
                Spec::new(1, time_span(micros.div_ceil(shared)))
            }
            shared => Spec::new(shared, window),
        }
    }

    /// The whole units of the part; `None` if there are none.
    fn borrow(&self, Borrow { units, repay }: Borrow) -> Option<Borrow> {
        let units = self.floor(units);
        (units > 0).then_some(Borrow { units, repay })
    }

    fn bucket(&self, rate: &Rate, burst: u64) -> BucketShare {
        let requests = u128::from(rate.drain().get()).saturating_mul(u128::from(self.part));
        let ticks = u128::from(rate.unit().get()).saturating_mul(u128::from(self.of));
        let divisor = gcd(requests, ticks);
        BucketShare {
            requests: requests.checked_div(divisor).unwrap_or(1),
            ticks: ticks.checked_div(divisor).unwrap_or(1),
            tick: u128::from(rate.tick().micros()),
            burst: self.floor(burst).max(1),
            borrow: None,
        }
    }

    fn floor(&self, whole: u64) -> u64 {
        let shared = u128::from(whole).saturating_mul(u128::from(self.part));
        let floor = shared.checked_div(u128::from(self.of)).unwrap_or_default();
        u64::try_from(floor).unwrap_or(whole)
    }
}

/// The exact part of a bucket: `requests` per `ticks` of `tick` microseconds.
struct BucketShare {
    requests: u128,
    ticks: u128,
    tick: u128,
    burst: u64,
    borrow: Option<Borrow>,
}

impl BucketShare {
    /// Both sides of the rate divided by a power of two, rounded so that the rate is not larger. `None` if no request is left.
    fn halved(&self, halvings: u32) -> Option<(u64, TimeSpan)> {
        let requests = self.requests.checked_shr(halvings).filter(|requests| *requests > 0)?;
        let below = u128::MAX.checked_shl(halvings).map_or(u128::MAX, |above| !above);
        let ticks = self.ticks.saturating_add(below).checked_shr(halvings)?;
        // A number beyond the range is refused by the limit, as intended, because neither side saturates to a valid value.
        let micros = ticks.saturating_mul(self.tick);
        let window = if micros > u128::from(EXACT_MAX) { TimeSpan::ZERO } else { time_span(micros) };
        Some((u64::try_from(requests).unwrap_or_default(), window))
    }

    /// The time per request, rounded up.
    fn slowest(&self) -> TimeSpan {
        time_span(self.ticks.saturating_mul(self.tick).div_ceil(self.requests.max(1)))
    }
}

/// The longest wait in whole ticks. A wait beyond the time in which a full bucket drains has no effect, so the share of it
/// need not be longer.
fn max_wait(bucket: &Bucket) -> TimeSpan {
    let ticks = bucket.max_backlog().div_ceil(bucket.rate().drain().get());
    TimeSpan::from_micros(ticks.saturating_mul(bucket.rate().tick().micros()))
}

fn time_span(micros: u128) -> TimeSpan {
    TimeSpan::from_micros(u64::try_from(micros).unwrap_or(EXACT_MAX))
}

fn gcd(a: u128, b: u128) -> u128 {
    match a.checked_rem(b) {
        Some(rest) => gcd(b, rest),
        None => a.max(1),
    }
}
