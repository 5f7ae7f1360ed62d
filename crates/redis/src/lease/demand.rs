//! How fast a node spends a counter.

use tidegate_core::{TimeSpan, Timestamp};

/// Samples shorter than this say little about the rate.
const SHORTEST_SAMPLE: TimeSpan = TimeSpan::from_millis(10);
/// The time constant of the average, in microseconds.
const MEMORY: f64 = 2_000_000.0;

/// The units asked for, admitted or not, as a moving average.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// Units since the last sample.
    units: u64,
    since: Timestamp,
    /// Units per microsecond; `None` before the first sample.
    rate: Option<f64>,
}

impl Demand {
    /// Counts units.
    pub(super) fn add(&mut self, units: u64) {
        self.units = self.units.saturating_add(units);
    }

    /// The units counted since the last sample.
    pub(super) fn since_sample(&self) -> u64 {
        self.units
    }

    /// Updates the average.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn sample(&mut self, now: Timestamp) {
        if self.since == Timestamp::ZERO {
            self.since = now;
            return;
        }
        let elapsed = now.since(self.since);
        if elapsed < SHORTEST_SAMPLE {
            return;
        }
        let elapsed = elapsed.as_micros() as f64;
        let latest = self.units as f64 / elapsed;
        let rate = self.rate.map_or(latest, |rate| rate + (latest - rate) * elapsed / (elapsed + MEMORY));
        *self = Self { units: 0, since: now, rate: Some(rate) };
    }

    /// The units expected within `span`, rounded up; `None` if the rate is unknown.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate; the cast saturates"
    )]
    pub(super) fn within(&self, span: TimeSpan) -> Option<u64> {
        self.rate.map(|rate| (rate * span.as_micros() as f64).ceil() as u64)
    }
}
