//! Metrics of upstreams.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;

use super::counter::{Counter, per_core};
use super::exposition::Exposition;
use super::histogram::{self, Histogram, Scale};

/// The result of one attempt to get a response from an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// The upstream responded with this status.
    Response(u16),
    /// No connection to the upstream could be made.
    Unreachable,
    /// The upstream closed the connection early, or its response is not valid HTTP.
    Broken,
    /// The upstream did not respond in time.
    TimedOut,
    /// The client disconnected, its deadline passed, or its request body was invalid, before the response.
    Abandoned,
}

impl AttemptResult {
    /// The name in metrics, logs and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Response(_) => "answered",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::TimedOut => "too_slow",
            Self::Abandoned => "abandoned",
        }
    }
}

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const FAILURES: [AttemptResult; 4] =
    [AttemptResult::Unreachable, AttemptResult::Broken, AttemptResult::TimedOut, AttemptResult::Abandoned];

/// The class of a status, as an index into `CLASSES`.
pub(crate) fn class(status: u16) -> usize {
    usize::from(status / 100).clamp(1, CLASSES.len()) - 1
}

pub(crate) fn class_name(class: usize) -> &'static str {
    CLASSES.get(class).copied().unwrap_or("5xx")
}

#[derive(Debug, Default)]
struct AttemptCounts {
    responses: [Counter; CLASSES.len()],
    failures: [Counter; FAILURES.len()],
    latency: Histogram,
}

/// The counts of one upstream, for each core.
#[derive(Debug)]
pub struct UpstreamCounts {
    name: String,
    cores: Box<[CachePadded<AttemptCounts>]>,
}

impl UpstreamCounts {
    /// The upstream's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn record_attempt(&self, core: usize, result: AttemptResult, nanos: u64) {
        let Some(counts) = self.cores.get(core % self.cores.len().max(1)) else { return };
        if let AttemptResult::Response(status) = result {
            counts.responses[class(status)].increment();
            counts.latency.observe(nanos);
        } else if let Some(index) = FAILURES.iter().position(|failure| *failure == result) {
            counts.failures[index].increment();
        }
    }

    fn sum(&self, counter: impl Fn(&AttemptCounts) -> &Counter) -> u64 {
        self.cores.iter().map(|core| counter(core).get()).sum()
    }
}

/// All upstreams since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct Upstreams {
    known: Mutex<Vec<Arc<UpstreamCounts>>>,
}

impl Upstreams {
    /// Returns the counts of the upstream called `name`; creates them if there are none.
    pub(crate) fn get_or_add(&self, name: &str, cores: usize) -> Arc<UpstreamCounts> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = known.iter().find(|counts| counts.name == name) {
            return Arc::clone(counts);
        }
        let counts = Arc::new(UpstreamCounts { name: name.to_owned(), cores: per_core(cores) });
        known.push(Arc::clone(&counts));
        counts
    }

    pub(crate) fn write(&self, exposition: &mut Exposition) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_empty() {
            return;
        }
        let help = "Upstream responses by status class; each attempt is counted once.";
        let mut family = exposition.counter("tidegate_upstream_requests_total", help);
        for counts in &known {
            for (index, class) in CLASSES.iter().enumerate() {
                let labels = [("upstream", counts.name.as_str()), ("code", class)];
                family.sample(&labels, counts.sum(|attempts| &attempts.responses[index]));
            }
        }
        let help = "Upstream attempts that got no response, by reason.";
        let mut family = exposition.counter("tidegate_upstream_failures_total", help);
        for counts in &known {
            for (index, failure) in FAILURES.iter().enumerate() {
                let labels = [("upstream", counts.name.as_str()), ("reason", failure.name())];
                family.sample(&labels, counts.sum(|attempts| &attempts.failures[index]));
            }
        }
        let help = "Time until the response of an upstream began, in seconds.";
        let mut family = exposition.histogram("tidegate_upstream_latency_seconds", help);
        for counts in &known {
            let cores =
                histogram::per_core_histograms(&counts.cores, |attempts: &AttemptCounts| &attempts.latency);
            histogram::write(&mut family, Scale::Upstream, &[("upstream", counts.name.as_str())], cores);
        }
    }
}
