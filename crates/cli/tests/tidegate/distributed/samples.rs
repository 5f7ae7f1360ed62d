//! What the clients saw.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_testkit::client::LoadSample;

/// The requests of one run, in the order of their responses.
pub(super) struct Samples(pub(super) Vec<LoadSample>);

impl Samples {
    /// Requests with a 5xx or without a response.
    pub(super) fn failures(&self) -> usize {
        self.0.iter().filter(|sample| sample.status.is_none_or(|status| status >= 500)).count()
    }

    /// The longest time between a request and its response, among requests that ended after `since`.
    pub(super) fn slowest(&self, since: Duration) -> Duration {
        let late = self.0.iter().filter(|sample| sample.received >= since);
        late.map(LoadSample::latency).max().unwrap_or_default()
    }

    /// The latency that 99 % of the requests sent within a time do not exceed.
    pub(super) fn p99(&self, time: std::ops::Range<Duration>) -> Duration {
        let sent = self.0.iter().filter(|sample| time.contains(&sample.sent));
        let mut latencies: Vec<_> = sent.map(LoadSample::latency).collect();
        latencies.sort_unstable();
        latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default()
    }

    /// Admitted requests of each client in each window since the epoch. A request that was sent in one window and answered in
    /// the next may count in either, so that it is left out.
    pub(super) fn admitted(&self, window: Duration) -> BTreeMap<(u128, usize), u64> {
        let mut counts = BTreeMap::new();
        for sample in self.0.iter().filter(|sample| sample.is_admitted()) {
            let [first, last] = [sample.sent, sample.received].map(|time| index(time, window));
            if first == last {
                *counts.entry((first, sample.client)).or_default() += 1;
            }
        }
        counts
    }

    /// The most that one client was admitted in one of the windows that fulfil a condition.
    pub(super) fn most(&self, window: Duration, is_meant: impl Fn(u128) -> bool) -> u64 {
        let counts = self.admitted(window).into_iter();
        counts.filter(|((index, _), _)| is_meant(*index)).map(|(_, count)| count).max().unwrap_or(0)
    }

    /// Units of one client that did not fit a bucket of `burst` units that drains by `rate` units per second, whenever within
    /// its request each unit was charged.
    pub(super) fn excess(&self, client: usize, burst: u32, rate: f64) -> f64 {
        let admitted = self.0.iter().filter(|sample| sample.is_admitted() && sample.client == client);
        let mut by_sending: Vec<_> = admitted.copied().collect();
        by_sending.sort_by_key(|sample| sample.sent);
        let mut most = 0.0_f64;
        for (position, first) in by_sending.iter().enumerate() {
            // All requests that were sent after this one, by the order of their responses.
            let mut ends: Vec<_> = by_sending[position..].iter().map(|sample| sample.received).collect();
            ends.sort_unstable();
            for (count, end) in (1_u32..).zip(ends) {
                let fits = f64::from(burst) + rate * end.saturating_sub(first.sent).as_secs_f64();
                most = most.max(f64::from(count) - fits);
            }
        }
        most
    }
}

/// The number of the window that contains `time`.
pub(super) fn index(time: Duration, window: Duration) -> u128 {
    time.as_micros() / window.as_micros()
}
