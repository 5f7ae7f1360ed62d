//! What is counted of the services behind.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;

use super::counter::{Counter, for_each_core};
use super::exposition::{Exposition, MetricKind};
use super::histogram::{self, Histogram, Scale};

/// What became of one try to get an answer from an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// It answered with this status.
    Answered(u16),
    /// It could not be reached.
    Unreachable,
    /// It broke off, or what came is not HTTP.
    Broken,
    /// It did not answer in time.
    TooSlow,
    /// The client left, or sent what cannot be sent on, before an answer came.
    Abandoned,
}

impl AttemptResult {
    /// As metrics, logs and traces call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered(_) => "answered",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::TooSlow => "too_slow",
            Self::Abandoned => "abandoned",
        }
    }
}

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const FAILURES: [AttemptResult; 4] =
    [AttemptResult::Unreachable, AttemptResult::Broken, AttemptResult::TooSlow, AttemptResult::Abandoned];

/// The class of a status, as a position in `CLASSES`.
pub(crate) fn class(status: u16) -> usize {
    usize::from(status / 100).clamp(1, CLASSES.len()) - 1
}

pub(crate) fn class_name(class: usize) -> &'static str {
    CLASSES.get(class).copied().unwrap_or("5xx")
}

#[derive(Debug, Default)]
struct AttemptCounts {
    answered: [Counter; CLASSES.len()],
    failed: [Counter; FAILURES.len()],
    latency: Histogram,
}

/// Counts of one upstream, by core.
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

    pub(crate) fn tried(&self, core: usize, result: AttemptResult, nanos: u64) {
        let Some(tries) = self.cores.get(core % self.cores.len().max(1)) else { return };
        if let AttemptResult::Answered(status) = result {
            tries.answered[class(status)].one();
            tries.latency.observe(nanos);
        } else if let Some(at) = FAILURES.iter().position(|failure| *failure == result) {
            tries.failed[at].one();
        }
    }

    fn sum(&self, which: impl Fn(&AttemptCounts) -> &Counter) -> u64 {
        self.cores.iter().map(|core| which(core).get()).sum()
    }
}

/// All upstreams that a process has seen.
#[derive(Debug, Default)]
pub(crate) struct Upstreams {
    known: Mutex<Vec<Arc<UpstreamCounts>>>,
}

impl Upstreams {
    /// The counts of the upstream called `name`, which go on if it has some.
    pub(crate) fn named(&self, name: &str, cores: usize) -> Arc<UpstreamCounts> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = known.iter().find(|counts| counts.name == name) {
            return Arc::clone(counts);
        }
        let counts = Arc::new(UpstreamCounts { name: name.to_owned(), cores: for_each_core(cores) });
        known.push(Arc::clone(&counts));
        counts
    }

    pub(crate) fn write(&self, page: &mut Exposition) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_empty() {
            return;
        }
        let mut family = page.family(
            "tidegate_upstream_requests_total",
            MetricKind::Counter,
            "Answers of upstreams by class of their status; each try is one.",
        );
        for counts in &known {
            for (at, class) in CLASSES.iter().enumerate() {
                let labels = [("upstream", counts.name.as_str()), ("code", class)];
                family.sample(&labels, counts.sum(|tries| &tries.answered[at]));
            }
        }
        let mut family = page.family(
            "tidegate_upstream_failures_total",
            MetricKind::Counter,
            "AttemptCounts that got no answer, by what went wrong.",
        );
        for counts in &known {
            for (at, failure) in FAILURES.iter().enumerate() {
                let labels = [("upstream", counts.name.as_str()), ("reason", failure.name())];
                family.sample(&labels, counts.sum(|tries| &tries.failed[at]));
            }
        }
        let mut family = page.family(
            "tidegate_upstream_latency_seconds",
            MetricKind::Histogram,
            "How long upstreams took until their answer began, in seconds.",
        );
        for counts in &known {
            let cores = histogram::of_cores(&counts.cores, |tries: &AttemptCounts| &tries.latency);
            histogram::write(&mut family, Scale::Upstream, &[("upstream", counts.name.as_str())], cores);
        }
    }
}
