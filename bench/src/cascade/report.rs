//! What the clients saw, second by second.

use std::sync::Mutex;

use super::caller::Stack;
use super::load::{HANG, REQUESTS_PER_SECOND};

/// Which tiers a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// Only the top one.
    Independent,
    /// All three.
    NeedsBottom,
}

/// The counts of one second.
#[derive(Clone, Copy, Debug, Default)]
struct SecondCounts {
    /// Good responses to requests that were sent in this second.
    independent: u64,
    needs_bottom: u64,
    bottom_calls: u64,
}

/// The result of one run.
#[derive(Debug)]
pub(super) struct CascadeReport {
    stack: Stack,
    seconds: Mutex<Vec<SecondCounts>>,
}

/// Requests of each kind per second.
const OF_EACH_KIND: u64 = REQUESTS_PER_SECOND / 2;

impl CascadeReport {
    pub(super) fn new(stack: Stack, seconds: u64) -> Self {
        Self { stack, seconds: Mutex::new((0..seconds).map(|_| SecondCounts::default()).collect()) }
    }

    pub(super) fn count(&self, second: u64, kind: RequestKind, is_good: bool) {
        self.change(second, |counts| match kind {
            RequestKind::Independent => counts.independent += u64::from(is_good),
            RequestKind::NeedsBottom => counts.needs_bottom += u64::from(is_good),
        });
    }

    pub(super) fn count_bottom_calls(&self, second: u64, calls: u64) {
        self.change(second, |counts| counts.bottom_calls = calls);
    }

    fn change(&self, second: u64, change: impl FnOnce(&mut SecondCounts)) {
        let mut seconds = self.seconds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(counts) = usize::try_from(second).ok().and_then(|second| seconds.get_mut(second)) {
            change(counts);
        }
    }

    fn seconds(&self) -> Vec<SecondCounts> {
        self.seconds.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Goodput of requests that do not need the bottom tier, from the start of the hang to the end of the run.
    #[expect(clippy::cast_precision_loss, reason = "a figure to read, not to compute with")]
    pub(super) fn independent_goodput_percent(&self) -> f64 {
        let seconds = self.seconds();
        let during: Vec<_> = seconds.iter().skip(usize::try_from(HANG.start).unwrap_or_default()).collect();
        let good: u64 = during.iter().map(|counts| counts.independent).sum();
        good as f64 * 100.0 / (during.len() as u64 * OF_EACH_KIND) as f64
    }

    /// Seconds from the end of the hang until at least 99 % of the requests of every later second are good; `None` if there is
    /// no such second.
    pub(super) fn recovered_after(&self) -> Option<u64> {
        let seconds = self.seconds();
        let is_good = |counts: &SecondCounts| {
            (counts.independent + counts.needs_bottom) * 100 >= REQUESTS_PER_SECOND * 99
        };
        let first = seconds.iter().rposition(|counts| !is_good(counts)).map_or(0, |last| last as u64 + 1);
        (first < seconds.len() as u64).then(|| first.saturating_sub(HANG.end))
    }

    pub(super) fn print(&self) {
        let seconds = self.seconds();
        println!("stack {:?}", self.stack);
        let line = |what: &str, figure: fn(&SecondCounts) -> u64| {
            let figures: Vec<_> = seconds.iter().map(|counts| figure(counts).to_string()).collect();
            println!("  {what:28} {}", figures.join(" "));
        };
        line("independent, good per second", |counts| counts.independent);
        line("need bottom, good per second", |counts| counts.needs_bottom);
        line("calls to the bottom tier", |counts| counts.bottom_calls);
        println!(
            "  goodput of independent requests from the hang on: {:.1} %",
            self.independent_goodput_percent()
        );
        match self.recovered_after() {
            Some(after) => println!("  recovered {after} s after the hang\n"),
            None => println!("  not recovered {} s after the hang\n", seconds.len() as u64 - HANG.end),
        }
    }
}
