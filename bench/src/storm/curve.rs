//! What is counted in a run: load and success over time.

use std::ops::Range;

/// The resolution of the curves.
pub(super) const BINS_PER_SECOND: usize = 10;
const MICROS_PER_BIN: u64 = 1_000_000 / BINS_PER_SECOND as u64;

/// The result of one run.
#[derive(Debug)]
pub(crate) struct StormReport {
    pub(crate) name: &'static str,
    /// Requests of clients.
    pub(crate) requests: u64,
    /// Attempts that reached the service or its dead address, per bin.
    pub(super) attempts: Vec<u64>,
    /// New requests, per bin.
    pub(super) demand: Vec<u64>,
    /// Requests that succeeded, by the bin in which they started.
    pub(super) served: Vec<u64>,
    /// Responses that arrived in time, by the bin in which they arrived.
    pub(super) responses: Vec<u64>,
    /// The seconds in which the service was dead.
    outage: Range<u64>,
    /// Seconds from the end of the outage until at least 99 % of the requests of every later second succeed; `None` if the
    /// service does not recover.
    pub(crate) recovered_after: Option<u64>,
}

impl StormReport {
    pub(super) fn new(name: &'static str, outage: Range<u64>, seconds: u64) -> Self {
        // Attempts go on after the last request.
        let bins = bin_of(seconds * 1_000_000);
        let empty = || vec![0; bins];
        Self {
            name,
            requests: 0,
            attempts: empty(),
            demand: empty(),
            served: empty(),
            responses: empty(),
            outage,
            recovered_after: None,
        }
    }

    pub(super) fn count_request(&mut self, at: u64) {
        self.requests += 1;
        add(&mut self.demand, at);
    }

    pub(super) fn count_attempt(&mut self, at: u64) {
        add(&mut self.attempts, at);
    }

    pub(super) fn count_success(&mut self, started: u64, at: u64) {
        add(&mut self.served, started);
        add(&mut self.responses, at);
    }

    pub(super) fn close(&mut self) {
        let is_good = |bins: (&[u64], &[u64])| {
            let (demand, served): (u64, u64) = (bins.0.iter().sum(), bins.1.iter().sum());
            served * 100 >= demand * 99
        };
        let seconds = self.demand.chunks(BINS_PER_SECOND).zip(self.served.chunks(BINS_PER_SECOND));
        let good: Vec<_> = seconds.map(is_good).collect();
        let bad = good.iter().rposition(|is_good| !is_good).map_or(0, |last| last as u64 + 1);
        self.recovered_after = (bad < good.len() as u64).then(|| bad.saturating_sub(self.outage.end));
    }

    /// Attempts per request while the service is dead.
    #[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
    pub(crate) fn amplification(&self) -> f64 {
        let bins = bin_of(self.outage.start * 1_000_000)..bin_of(self.outage.end * 1_000_000);
        let sum = |counts: &[u64]| counts[bins.clone()].iter().sum::<u64>() as f64;
        sum(&self.attempts) / sum(&self.demand)
    }

    /// The largest load in any tenth of a second, as a rate.
    pub(crate) fn peak_per_second(&self) -> u64 {
        self.attempts.iter().max().map_or(0, |most| most * BINS_PER_SECOND as u64)
    }

    #[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
    pub(crate) fn served_percent(&self) -> f64 {
        self.served.iter().sum::<u64>() as f64 / self.requests as f64 * 100.0
    }

    pub(crate) fn recovery_text(&self) -> String {
        match self.recovered_after {
            None => {
                format!("not in {} s", self.attempts.len() as u64 / BINS_PER_SECOND as u64 - self.outage.end)
            }
            Some(0) => "at once".to_owned(),
            Some(seconds) => format!("in {seconds} s"),
        }
    }

    pub(crate) fn attempts_line(&self) -> String {
        let seconds = self.attempts.chunks(BINS_PER_SECOND).map(|bins| bins.iter().sum::<u64>().to_string());
        seconds.collect::<Vec<_>>().join(" ")
    }
}

fn bin_of(micros: u64) -> usize {
    usize::try_from(micros / MICROS_PER_BIN).unwrap_or(usize::MAX)
}

/// Counts one event; events after the last bin are not shown.
fn add(bins: &mut [u64], micros: u64) {
    if let Some(bin) = bins.get_mut(bin_of(micros)) {
        *bin += 1;
    }
}
