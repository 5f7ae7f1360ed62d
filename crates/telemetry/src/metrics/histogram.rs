//! Histograms of durations.

use crossbeam_utils::CachePadded;

use super::counter::Counter;
use super::exposition::{Family, MetricUnit};

/// The upper bounds of the buckets in nanoseconds, and their text in milliseconds and in seconds. A decision takes about
/// a microsecond, an upstream up to a minute. The alert on slow decisions needs the bound of 5 ms.
const BOUNDS: [(u64, &str, &str); 24] = [
    (500, "0.0005", "0.0000005"),
    (1_000, "0.001", "0.000001"),
    (2_000, "0.002", "0.000002"),
    (3_000, "0.003", "0.000003"),
    (5_000, "0.005", "0.000005"),
    (10_000, "0.01", "0.00001"),
    (20_000, "0.02", "0.00002"),
    (50_000, "0.05", "0.00005"),
    (100_000, "0.1", "0.0001"),
    (250_000, "0.25", "0.00025"),
    (500_000, "0.5", "0.0005"),
    (1_000_000, "1", "0.001"),
    (2_500_000, "2.5", "0.0025"),
    (5_000_000, "5", "0.005"),
    (10_000_000, "10", "0.01"),
    (25_000_000, "25", "0.025"),
    (50_000_000, "50", "0.05"),
    (100_000_000, "100", "0.1"),
    (250_000_000, "250", "0.25"),
    (500_000_000, "500", "0.5"),
    (1_000_000_000, "1000", "1"),
    (2_500_000_000, "2500", "2.5"),
    (10_000_000_000, "10000", "10"),
    (60_000_000_000, "60000", "60"),
];
const BUCKETS: usize = BOUNDS.len() + 1;

/// The histogram of one core.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [Counter; BUCKETS],
    nanos: Counter,
}

impl Histogram {
    pub(crate) fn observe(&self, nanos: u64) {
        self.observe_many(nanos, 1);
    }

    /// Counts `count` durations of this length.
    pub(crate) fn observe_many(&self, nanos: u64, count: u64) {
        let bucket = BOUNDS.partition_point(|(bound, ..)| *bound < nanos);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.add(count);
        }
        self.nanos.add(nanos.saturating_mul(count));
    }
}

/// The buckets and the unit of a metric: decisions are much faster than upstreams.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    /// Up to a second, in milliseconds.
    Decision,
    /// From half a millisecond, in seconds.
    Upstream,
}

impl Scale {
    fn includes(self, nanos: u64) -> bool {
        match self {
            Self::Decision => nanos <= 1_000_000_000,
            Self::Upstream => nanos >= 500_000,
        }
    }
}

/// Writes the sum of the histograms of all cores.
pub(crate) fn write<'h>(
    family: &mut Family<'_>,
    scale: Scale,
    labels: &[(&str, &str)],
    cores: impl Iterator<Item = &'h Histogram> + Clone,
) {
    let mut count = 0;
    for (index, (bound, millis, seconds)) in BOUNDS.iter().enumerate() {
        count += cores.clone().map(|core| core.buckets[index].get()).sum::<u64>();
        let text = match scale {
            Scale::Decision => millis,
            Scale::Upstream => seconds,
        };
        if scale.includes(*bound) {
            family.bucket(labels, text, count);
        }
    }
    count += cores.clone().map(|core| core.buckets[BUCKETS - 1].get()).sum::<u64>();
    family.bucket(labels, "+Inf", count);
    let nanos = cores.map(|core| core.nanos.get()).sum();
    let unit = match scale {
        Scale::Decision => MetricUnit::Millis,
        Scale::Upstream => MetricUnit::Seconds,
    };
    family.count_and_sum(labels, count, unit.convert(nanos));
}

/// One histogram of each core.
pub(crate) fn per_core_histograms<T>(
    cores: &[CachePadded<T>],
    histogram: impl Fn(&T) -> &Histogram + Clone,
) -> impl Iterator<Item = &Histogram> + Clone {
    cores.iter().map(move |core| histogram(core))
}

#[cfg(test)]
mod tests {
    use super::super::exposition::Exposition;
    use super::*;

    #[test]
    fn bucket_bound_texts_equal_their_values() {
        #[expect(clippy::cast_precision_loss, reason = "bounds are small")]
        for (nanos, millis, seconds) in BOUNDS {
            assert!((millis.parse::<f64>().unwrap() * 1e6 - nanos as f64).abs() < 1e-6, "{millis}");
            assert!((seconds.parse::<f64>().unwrap() * 1e9 - nanos as f64).abs() < 1e-3, "{seconds}");
        }
        assert!(BOUNDS.is_sorted());
    }

    #[test]
    fn histogram_buckets_are_cumulative_with_inclusive_bounds() {
        let (one, two) = (Histogram::default(), Histogram::default());
        one.observe(1_000);
        one.observe(1_001);
        two.observe(3_000_000_000);
        let mut exposition = Exposition::default();
        let mut family = exposition.histogram("t", "Some.");
        write(&mut family, Scale::Decision, &[], [&one, &two].into_iter());
        let text = exposition.into_text();
        for line in ["t_bucket{le=\"0.0005\"} 0", "t_bucket{le=\"0.001\"} 1", "t_bucket{le=\"0.002\"} 2"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(
            text.contains("t_bucket{le=\"1000\"} 2\nt_bucket{le=\"+Inf\"} 3\nt_count 3\nt_sum 3000.002001\n"),
            "{text}"
        );
    }
}
