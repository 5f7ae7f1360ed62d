//! A concurrency limit that follows the latency of a service.
//!
//! Latencies are averaged over short windows and compared with a *baseline*, the latency of the service alone. In each window
//! it falls by an eighth of its distance to a lower latency. It rises again, so that a service that has become slower for
//! good is followed: soon if less than half of the limit is in use, because then the latency is that of the service alone;
//! very slowly otherwise, because then it may be that of a queue. At the end of a window
//!
//! ```text
//! gradient = tolerance × baseline / latency, between 1/2 and 1
//! target   = limit × gradient + headroom        headroom = √limit
//! limit    = 4/5 × limit + 1/5 × target         between min and max
//! ```
//!
//! While the service keeps up, the limit grows by its headroom; when latency rises beyond the tolerance, requests queue
//! somewhere and the limit shrinks. It never shrinks in order to measure, and it grows only if at least half of it was
//! used, since otherwise nothing was learned about it.
//!
//! One client must not change the limit of the others with requests that are cheaper or slower than theirs. So clients are in
//! groups, and the latency of a window is the median of the averages of its groups. With an even number of groups the baseline
//! falls to the higher median, and everything else uses the lower one. While there are several groups, a window needs at least
//! two of them. What one group alone has caused ends with it: when another appears, the baseline rises to what is measured
//! now, and the limit to its initial value. So however many requests of any latency one client sends, the limit of at least
//! one other client whose latency stays within the tolerance does not shrink.

use thiserror::Error;

use super::atomic::{AtomicU64, Ordering};
use super::ratio::Ratio;
use crate::time::{TimeSpan, Timestamp};

/// The bounds of an adaptive limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptiveConfig {
    /// The limit at the start.
    pub initial: u32,
    /// The limit never shrinks below this.
    pub min: u32,
    /// The limit never grows beyond this.
    pub max: u32,
    /// How much slower than the baseline the service may become before the limit shrinks, in percent: 150 is half as slow
    /// again.
    pub tolerance_percent: u32,
    /// The length of a measuring window; a window with fewer than [`Self::MIN_SAMPLES`] calls is extended.
    pub window: TimeSpan,
}

impl AdaptiveConfig {
    /// The calls that a window needs.
    pub const MIN_SAMPLES: u64 = 10;

    /// Starts with this limit.
    pub fn initial(self, initial: u32) -> Self {
        Self { initial, ..self }
    }

    /// Never shrinks below `min`, and never grows beyond `max`.
    pub fn bounds(self, min: u32, max: u32) -> Self {
        Self { min, max, ..self }
    }

    /// Shrinks when the service takes this much of its usual time, in percent.
    pub fn tolerance_percent(self, tolerance_percent: u32) -> Self {
        Self { tolerance_percent, ..self }
    }
}

impl Default for AdaptiveConfig {
    /// Starts at 20, between 5 and 1,000, with windows of 100 ms.
    fn default() -> Self {
        Self { initial: 20, min: 5, max: 1_000, tolerance_percent: 150, window: TimeSpan::from_millis(100) }
    }
}

/// Why the bounds of an adaptive limit are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AdaptiveConfigError {
    /// The bounds are not ordered, or the smallest is zero.
    #[error("expected 1 <= min <= initial <= max, got min {min}, initial {initial}, max {max}")]
    Bounds {
        /// `min`.
        min: u32,
        /// `initial`.
        initial: u32,
        /// `max`.
        max: u32,
    },
    /// The tolerance is below 100 %, or the window is zero.
    #[error("the tolerance must be at least 100 % and the window positive")]
    Sensitivity,
}

named_enum! {
    /// How important a request is, the least important first. Less important requests are rejected first.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Criticality {
        /// Can be done later, for example by a batch job.
        Sheddable = "sheddable",
        /// May be partly unavailable.
        SheddablePlus = "sheddable_plus",
        /// Users notice its absence: the default.
        #[default]
        Critical = "critical",
        /// Its absence is an outage.
        CriticalPlus = "critical_plus",
    }
}

impl Criticality {
    /// Reads a value of the header `X-Criticality`, in either case and with `-` or `_`.
    pub fn parse(text: &str) -> Option<Self> {
        let same = |name: &str| {
            name.len() == text.len()
                && name
                    .bytes()
                    .zip(text.bytes())
                    .all(|(name, byte)| name == byte.to_ascii_lowercase() || (name == b'_' && byte == b'-'))
        };
        Self::ALL.into_iter().find(|criticality| same(criticality.name()))
    }

    /// The share of the limit that requests of this importance may fill.
    pub const fn share(self) -> Ratio {
        match self {
            Self::Sheddable => Ratio::from_percent(50),
            Self::SheddablePlus => Ratio::from_percent(75),
            Self::Critical => Ratio::from_percent(90),
            Self::CriticalPlus => Ratio::ONE,
        }
    }
}

/// An adaptive concurrency limit, shared by all callers of one service.
#[derive(Debug)]
pub struct AdaptiveLimit {
    config: AdaptiveConfig,
    /// The limit in thousandths.
    limit: AtomicU64,
    in_flight: AtomicU64,
    /// The most requests in flight in this window.
    peak: AtomicU64,
    /// The baseline in nanoseconds; 0 before the first window ends.
    baseline: AtomicU64,
    /// The samples of each group of clients: the sum of latencies in microseconds, above their number in 20 bits.
    samples: [AtomicU64; GROUPS],
    /// Who has caused the baseline: one group, by its number, or [`SEVERAL`].
    measured_by: AtomicU64,
    /// Until when a window needs several groups, in microseconds.
    several_until: AtomicU64,
    /// The end of the window, in microseconds.
    window_end: AtomicU64,
    rejected: AtomicU64,
}

const THOUSAND: u64 = 1_000;
const COUNT_BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const SUM_MAX: u64 = u64::MAX >> COUNT_BITS;
const GROUP_BITS: u32 = 4;
/// The groups of clients.
const GROUPS: usize = 1 << GROUP_BITS;
const GROUP_MASK: u64 = (1 << GROUP_BITS) - 1;
/// Several groups have caused the baseline.
const SEVERAL: u64 = u64::MAX;
/// How many windows after one with several groups another one needs several: with windows of 100 ms, 10 s.
const SEVERAL_WINDOWS: u64 = 100;
/// In each window with a lower latency the baseline falls by this fraction of its distance to it.
const FALL_STEPS: u64 = 8;
/// In each window with little traffic the baseline rises by this fraction of its distance to the average.
const QUIET_STEPS: u64 = 100;
/// The same in each window with much traffic: with windows of 100 ms, two thirds of the distance in a quarter of an hour. The
/// limit grows as slowly during an overload that does not end.
const BUSY_STEPS: u64 = 10_000;

impl AdaptiveLimit {
    /// A limit at its initial value.
    pub fn new(config: AdaptiveConfig) -> Result<Self, AdaptiveConfigError> {
        let AdaptiveConfig { initial, min, max, .. } = config;
        if min == 0 || initial < min || max < initial {
            return Err(AdaptiveConfigError::Bounds { min, initial, max });
        }
        if config.tolerance_percent < 100 || config.window.is_zero() {
            return Err(AdaptiveConfigError::Sensitivity);
        }
        Ok(Self {
            config,
            limit: AtomicU64::new(u64::from(initial).saturating_mul(THOUSAND)),
            in_flight: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            baseline: AtomicU64::new(0),
            samples: core::array::from_fn(|_| AtomicU64::new(0)),
            measured_by: AtomicU64::new(SEVERAL),
            several_until: AtomicU64::new(0),
            window_end: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        })
    }

    /// The limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed) / THOUSAND
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Requests that were rejected.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Admits a request if its importance leaves room for it. Every admitted request ends with [`Self::release`].
    pub fn try_acquire(&self, criticality: Criticality) -> bool {
        // At least one request of any importance is admitted, or an idle service would stay idle.
        let most = criticality.share().of(self.limit()).max(1);
        let mut in_flight = self.in_flight.load(Ordering::Relaxed);
        while in_flight < most {
            let next = in_flight.saturating_add(1);
            match self.in_flight.compare_exchange_weak(in_flight, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    if next > self.peak.load(Ordering::Relaxed) {
                        self.peak.fetch_max(next, Ordering::Relaxed);
                    }
                    return true;
                }
                Err(actual) => in_flight = actual,
            }
        }
        self.rejected.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Ends an admitted request. Its latency is recorded with [`Self::record`], unless it was cancelled.
    pub fn release(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    /// Records the latency of a request of `client` that ended at `now`. `client` is a hash, or the same number for all if
    /// clients are not known.
    pub fn record(&self, client: u64, latency: TimeSpan, now: Timestamp) {
        self.add_sample(client, latency.as_micros());
        let end = self.window_end.load(Ordering::Relaxed);
        if now.as_micros() < end || !self.has_enough_samples(now) {
            return;
        }
        let next_end = (now + self.config.window).as_micros();
        let is_last =
            self.window_end.compare_exchange(end, next_end, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // The first window has no start; it only sets the end.
        if is_last && end != 0 {
            self.end_window(now);
        }
    }

    /// Records a request of `client` whose caller gave up at `now`, after `elapsed`. The service would have taken longer, so it
    /// counts if that is longer than the baseline; a caller that waits for a shorter time has measured nothing.
    pub fn record_unfinished(&self, client: u64, elapsed: TimeSpan, now: Timestamp) {
        let baseline = self.baseline.load(Ordering::Relaxed);
        if baseline != 0 && elapsed.as_micros().saturating_mul(THOUSAND) > baseline {
            self.record(client, elapsed, now);
        }
    }

    fn add_sample(&self, client: u64, micros: u64) {
        let group = usize::try_from(client & GROUP_MASK).unwrap_or_default();
        let Some(samples) = self.samples.get(group) else { return };
        let mut word = samples.load(Ordering::Relaxed);
        loop {
            let (sum, count) = (word >> COUNT_BITS, word & COUNT_MAX);
            if count == COUNT_MAX {
                return;
            }
            let (sum, count) = (sum.saturating_add(micros).min(SUM_MAX), count.saturating_add(1));
            let next = (sum << COUNT_BITS) | count;
            match samples.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(actual) => word = actual,
            }
        }
    }

    /// Whether a window that ends at `now` has as many calls and groups as it needs.
    fn has_enough_samples(&self, now: Timestamp) -> bool {
        let needs_several = now.as_micros() < self.several_until.load(Ordering::Relaxed);
        let counts = self.samples.iter().map(|group| group.load(Ordering::Relaxed) & COUNT_MAX);
        let (groups, calls) = counts.fold((0_u32, 0_u64), |(groups, calls), count| {
            (groups.saturating_add(u32::from(count > 0)), calls.saturating_add(count))
        });
        calls >= AdaptiveConfig::MIN_SAMPLES && (groups > 1 || !needs_several)
    }

    fn end_window(&self, now: Timestamp) {
        let peak = self.peak.swap(self.in_flight(), Ordering::AcqRel);
        let Some(latency) = WindowLatency::take(&self.samples) else { return };
        if latency.measured_by == SEVERAL {
            let span = self.config.window.as_micros().saturating_mul(SEVERAL_WINDOWS);
            self.several_until.store(now.as_micros().saturating_add(span), Ordering::Relaxed);
        }
        let is_other = self.measured_by.swap(latency.measured_by, Ordering::Relaxed) != latency.measured_by;
        let limit = self.limit.load(Ordering::Relaxed);
        let initial = u64::from(self.config.initial).saturating_mul(THOUSAND);
        let limit = if is_other { limit.max(initial) } else { limit };
        let is_busy = peak.saturating_mul(2 * THOUSAND) >= limit;
        let baseline = match self.baseline.load(Ordering::Relaxed) {
            0 => latency.high,
            // Others have caused it.
            known if is_other => known.max(latency.high),
            known if latency.high < known => {
                known.saturating_sub(known.saturating_sub(latency.high).div_ceil(FALL_STEPS))
            }
            known => {
                let distance = latency.low.saturating_sub(known);
                known.saturating_add(if is_busy { distance / BUSY_STEPS } else { distance / QUIET_STEPS })
            }
        };
        self.baseline.store(baseline, Ordering::Relaxed);
        let next = self.next_limit(limit, baseline, latency.low);
        // More than what is used was not tested.
        self.limit.store(if is_busy { next } else { next.min(limit) }, Ordering::Relaxed);
    }

    /// The next limit, in thousandths.
    fn next_limit(&self, limit: u64, baseline: u64, latency: u64) -> u64 {
        let tolerated = u128::from(baseline).saturating_mul(u128::from(self.config.tolerance_percent));
        let gradient = tolerated
            .saturating_mul(10)
            .checked_div(u128::from(latency))
            .map_or(THOUSAND, |gradient| u64::try_from(gradient).unwrap_or(u64::MAX))
            .clamp(THOUSAND / 2, THOUSAND);
        // √limit in thousandths: √(limit / 1000) × 1000.
        let headroom = limit.saturating_mul(THOUSAND).isqrt();
        let target = (limit.saturating_mul(gradient) / THOUSAND).saturating_add(headroom);
        let next = limit.saturating_mul(4).saturating_add(target) / 5;
        let bound = |value: u32| u64::from(value).saturating_mul(THOUSAND);
        next.clamp(bound(self.config.min), bound(self.config.max))
    }
}

/// The latency of a window in nanoseconds, so that services that take microseconds are measured too.
struct WindowLatency {
    /// The lower median of the averages of groups.
    low: u64,
    /// The higher one; the same if the number of groups is odd.
    high: u64,
    /// The only group, by its number, or [`SEVERAL`].
    measured_by: u64,
}

impl WindowLatency {
    /// Ends a window. `None` if it has no samples.
    fn take(samples: &[AtomicU64; GROUPS]) -> Option<Self> {
        let mut averages = [u64::MAX; GROUPS];
        let (mut groups, mut measured_by) = (0_usize, SEVERAL);
        for (number, (group, average)) in (0..).zip(samples.iter().zip(&mut averages)) {
            let word = group.swap(0, Ordering::AcqRel);
            let (sum, count) = (word >> COUNT_BITS, word & COUNT_MAX);
            if let Some(latency) = sum.saturating_mul(THOUSAND).checked_div(count) {
                *average = latency.max(1);
                groups = groups.saturating_add(1);
                measured_by = if groups == 1 { number } else { SEVERAL };
            }
        }
        averages.sort_unstable();
        let low = *averages.get(groups.checked_sub(1)? / 2)?;
        let high = *averages.get(groups / 2)?;
        Some(Self { low, high, measured_by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    /// Runs windows in which a service with `capacity` servers takes 10 ms, and longer when more requests queue.
    fn run(limit: &AdaptiveLimit, capacity: u64, windows: u32, start: Timestamp) -> Timestamp {
        let mut now = start;
        for _ in 0..windows {
            let mut in_flight = 0;
            while limit.try_acquire(Criticality::CriticalPlus) {
                in_flight += 1;
            }
            let queued = in_flight.max(capacity);
            let latency = TimeSpan::from_micros(10_000 * queued / capacity);
            now = now + TimeSpan::from_millis(200);
            for _ in 0..in_flight {
                limit.release();
                limit.record(0, latency, now);
            }
            for _ in in_flight..AdaptiveConfig::MIN_SAMPLES {
                limit.record(0, latency, now);
            }
        }
        now
    }

    #[test]
    fn adaptive_limit_grows_while_latency_stays_and_shrinks_when_it_rises() {
        let limit = AdaptiveLimit::new(AdaptiveConfig::default()).unwrap();
        let now = run(&limit, 200, 200, START);
        let grown = limit.limit();
        assert!((180..=420).contains(&grown), "about the capacity of 200 with its tolerance, {grown}");
        run(&limit, 50, 200, now);
        let shrunk = limit.limit();
        assert!(shrunk < grown / 2, "{shrunk} of {grown}");
        assert!(shrunk >= 20, "{shrunk}");
    }

    #[test]
    fn adaptive_limit_in_an_overload_that_does_not_end_stays_near_the_capacity() {
        let limit = AdaptiveLimit::new(AdaptiveConfig::default()).unwrap();
        let now = run(&limit, 50, 200, START);
        let before = limit.limit();
        // A quarter of an hour of windows.
        run(&limit, 50, 9_000, now);
        let after = limit.limit();
        assert!(after < 2 * before, "{before} {after}");
    }

    #[test]
    fn adaptive_limit_follows_a_service_that_has_become_slower_for_good() {
        let limit = AdaptiveLimit::new(AdaptiveConfig::default()).unwrap();
        let mut now = run(&limit, 200, 200, START);
        // With little traffic it is measured soon.
        for _ in 0..1_000 * AdaptiveConfig::MIN_SAMPLES {
            now = now + TimeSpan::from_millis(20);
            assert!(limit.try_acquire(Criticality::Sheddable));
            limit.release();
            limit.record(0, TimeSpan::from_millis(50), now);
        }
        let before = limit.limit();
        // As many requests as the limit admits, each as slow as without load.
        for _ in 0..500 {
            let in_flight = (0..2_000).take_while(|_| limit.try_acquire(Criticality::CriticalPlus)).count();
            now = now + TimeSpan::from_millis(200);
            for _ in 0..in_flight {
                limit.release();
                limit.record(0, TimeSpan::from_millis(50), now);
            }
        }
        assert!(limit.limit() > before.max(200), "{before} {}", limit.limit());
    }

    #[test]
    fn adaptive_limit_of_unknown_clients_is_not_changed_by_a_short_burst_of_cheap_requests() {
        let limit = AdaptiveLimit::new(AdaptiveConfig::default()).unwrap();
        let mut now = START;
        for turn in 0..1_000 {
            now = now + TimeSpan::from_millis(10);
            limit.record(0, TimeSpan::from_millis(50), now);
            for _ in 0..if turn == 500 { 30 } else { 0 } {
                limit.record(0, TimeSpan::from_micros(100), now);
            }
            assert_eq!(limit.limit(), 20, "{turn}");
        }
    }

    #[test]
    fn adaptive_limit_shrinks_in_an_overload_that_one_client_hides_with_cheap_requests() {
        let limit = AdaptiveLimit::new(AdaptiveConfig::default()).unwrap();
        let mut now = START;
        for millis in [50; 50].into_iter().chain([500; 50]) {
            now = now + TimeSpan::from_millis(200);
            for client in 0..4 {
                for _ in 0..20 {
                    let latency = TimeSpan::from_millis(if client == 0 { 1 } else { millis });
                    limit.record(client, latency, now);
                }
            }
        }
        assert_eq!(limit.limit(), u64::from(AdaptiveConfig::default().min));
    }

    #[test]
    fn adaptive_limit_shrinks_when_callers_give_up_requests_that_take_longer_than_usual() {
        let limit = AdaptiveLimit::new(AdaptiveConfig::default()).unwrap();
        let mut now = START;
        for window in 0..100 {
            now = now + TimeSpan::from_millis(200);
            for client in 0..40 {
                match window {
                    0..50 => limit.record(client, TimeSpan::from_millis(50), now),
                    _ => limit.record_unfinished(client, TimeSpan::from_millis(500), now),
                }
            }
        }
        assert_eq!(limit.limit(), u64::from(AdaptiveConfig::default().min));
    }

    #[test]
    fn adaptive_limit_ignores_callers_that_give_up_sooner_than_requests_usually_take() {
        let limit = AdaptiveLimit::new(AdaptiveConfig::default()).unwrap();
        let mut now = START;
        for _ in 0..100 {
            now = now + TimeSpan::from_millis(200);
            for client in 0..40 {
                limit.record_unfinished(client, TimeSpan::from_millis(1), now);
                limit.record(client, TimeSpan::from_millis(50), now);
                limit.record_unfinished(client, TimeSpan::from_millis(49), now);
            }
            assert_eq!(limit.limit(), 20);
        }
    }

    #[test]
    fn adaptive_limit_never_leaves_its_bounds() {
        let config = AdaptiveConfig { min: 4, max: 30, ..AdaptiveConfig::default() };
        let limit = AdaptiveLimit::new(config).unwrap();
        run(&limit, 10_000, 100, START);
        assert_eq!(limit.limit(), 30);
        for n in 0..100_000_u64 {
            limit.record(0, TimeSpan::from_secs(n), START + TimeSpan::from_secs(n + 100));
        }
        assert!(limit.limit() >= 4);
    }

    #[test]
    fn adaptive_limit_that_is_not_used_does_not_grow() {
        let limit = AdaptiveLimit::new(AdaptiveConfig::default()).unwrap();
        let mut now = START;
        for _ in 0..10_000 {
            assert!(limit.try_acquire(Criticality::Sheddable));
            limit.release();
            now = now + TimeSpan::from_millis(15);
            limit.record(0, TimeSpan::from_millis(10), now);
        }
        assert_eq!(limit.limit(), 20);
        assert_eq!(limit.rejected(), 0);
    }

    #[test]
    fn less_important_requests_are_rejected_first() {
        let limit = AdaptiveLimit::new(AdaptiveConfig::default()).unwrap();
        let fill = |criticality| (0..100).take_while(|_| limit.try_acquire(criticality)).count();
        let filled = Criticality::ALL.map(fill);
        assert_eq!(filled, [10, 5, 3, 2]);
        assert_eq!(limit.in_flight(), 20);
    }

    #[test]
    fn criticality_is_read_in_any_case() {
        assert_eq!(Criticality::parse("CRITICAL_PLUS"), Some(Criticality::CriticalPlus));
        assert_eq!(Criticality::parse("sheddable-plus"), Some(Criticality::SheddablePlus));
        assert_eq!(Criticality::parse("urgent"), None);
        assert_eq!(Criticality::parse(""), None);
    }

    #[test]
    fn unordered_bounds_are_rejected() {
        let good = AdaptiveConfig::default();
        for config in [
            AdaptiveConfig { min: 0, ..good },
            AdaptiveConfig { initial: 1, ..good },
            AdaptiveConfig { max: 1, ..good },
            AdaptiveConfig { tolerance_percent: 99, ..good },
            AdaptiveConfig { window: TimeSpan::ZERO, ..good },
        ] {
            assert!(AdaptiveLimit::new(config).is_err(), "{config:?}");
        }
    }
}
