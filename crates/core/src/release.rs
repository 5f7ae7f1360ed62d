//! How soon a limit that is used up admits the requests that wait for it.

use crate::bucket::Rate;
use crate::limit::{AlgorithmKind, Limit};
use crate::time::{Tick, TimeSpan};

impl Limit {
    /// The least time between the moment at which `first` units fit a limit that is used up, and the moment at which `more` units
    /// fit after them. Requests that wait cannot depart faster, whatever was admitted before; they may depart later.
    pub fn least_time_between(&self, first: u64, more: u64) -> TimeSpan {
        let at_once = |window: TimeSpan| {
            // Up to the whole limit may become available in one moment.
            let last = first.saturating_add(more).saturating_sub(1);
            let windows = last.checked_div(self.capacity()).unwrap_or_default();
            TimeSpan::from_micros(windows.saturating_mul(window.as_micros()))
        };
        match self.kind() {
            AlgorithmKind::TokenBucket(bucket) => steady(bucket.rate(), more),
            AlgorithmKind::LeakyBucket(bucket) => steady(bucket.rate(), more),
            AlgorithmKind::FixedWindow(limit) => at_once(limit.window()),
            AlgorithmKind::SlidingLog(limit) => at_once(limit.window()),
            // At most the whole limit slides out of the window in its length.
            AlgorithmKind::SlidingCounter(limit) => {
                proportion(more, limit.window().as_micros(), self.capacity(), self.tick())
            }
        }
    }
}

fn steady(rate: &Rate, units: u64) -> TimeSpan {
    let tick = rate.tick();
    proportion(units, rate.unit().get().saturating_mul(tick.micros()), rate.drain().get(), tick)
}

/// `units × micros / of`, rounded down to ticks: units fit at the first tick after their moment.
fn proportion(units: u64, micros: u64, of: u64, tick: Tick) -> TimeSpan {
    let product = u128::from(units).saturating_mul(u128::from(micros));
    let ticks = product.checked_div(u128::from(of).saturating_mul(u128::from(tick.micros())));
    let ticks = u64::try_from(ticks.unwrap_or_default()).unwrap_or(u64::MAX);
    TimeSpan::from_micros(ticks.saturating_mul(tick.micros()))
}
