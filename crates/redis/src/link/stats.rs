//! Counts of the connection to Redis.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Timestamp;

use super::error_replies::ErrorReplyReport;

/// Upper bounds of the latency histogram, in microseconds; one more bucket has the rest.
pub const LATENCY_BOUNDS: [u64; 10] = [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 50_000, 100_000];
/// Upper bounds of the histogram of operations per script call; one more bucket has the rest.
pub const BATCH_BOUNDS: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// The connection to Redis at one moment. All counts are totals since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkReport {
    /// Servers in use: 1, or the primaries of the cluster that are known.
    pub servers: u64,
    /// Servers whose breaker is open.
    pub servers_open: u64,
    /// Servers that are connected and have run a script.
    pub servers_connected: u64,
    /// How often a breaker has opened.
    pub opened: u64,
    /// Microseconds in which a breaker was open.
    pub open_micros: u64,
    /// Failed attempts to connect and lost connections.
    pub connection_errors: u64,
    /// Calls without a reply within the timeout.
    pub timeouts: u64,
    /// Calls that failed at once, because a breaker was open or no server was known.
    pub rejected_open: u64,
    /// Calls that failed at once, because too many were waiting.
    pub rejected_full: u64,
    /// Unanswered calls now.
    pub unanswered: u64,
    /// Calls that a server refused to execute, so that they were sent again: after a failover, during a reshard, or because
    /// the script was not loaded.
    pub retries: u64,
    /// Calls that a server answered with an error: neither redirections nor unknown scripts. One that is sent again because the server
    /// cannot write now counts each time.
    pub error_replies: u64,
    /// The last of them.
    pub last_error_reply: Option<ErrorReplyReport>,
    /// Operations that were sent.
    pub operations: u64,
    /// Script calls that carried them, by the number of operations; see [`BATCH_BOUNDS`].
    pub batch_sizes: [u64; BATCH_BOUNDS.len() + 1],
    /// Replies to decisions by the time that the caller waited; see [`LATENCY_BOUNDS`].
    pub latency: [u64; LATENCY_BOUNDS.len() + 1],
    /// Microseconds that all decisions with a reply waited.
    pub latency_micros: u64,
}

/// Counters, written by the I/O thread and by callers.
#[derive(Debug, Default)]
pub(super) struct LinkStats {
    pub(super) connection_errors: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) rejected_open: AtomicU64,
    pub(super) rejected_full: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) error_replies: AtomicU64,
    /// Servers that work now.
    pub(super) connected: AtomicU64,
    opened: AtomicU64,
    operations: AtomicU64,
    batch_sizes: [AtomicU64; BATCH_BOUNDS.len() + 1],
    latency: [AtomicU64; LATENCY_BOUNDS.len() + 1],
    latency_micros: AtomicU64,
    open_micros: AtomicU64,
    /// Since when a breaker is open; 0 if none is.
    open_since: AtomicU64,
}

impl LinkStats {
    /// Adds a script call.
    pub(super) fn add_script_call(&self, operations: usize) {
        let operations = operations as u64;
        add(&self.operations, operations);
        add_to_bucket(&self.batch_sizes, &BATCH_BOUNDS, operations);
    }

    /// Adds a reply to a decision.
    pub(super) fn add_reply(&self, waited_micros: u64) {
        add(&self.latency_micros, waited_micros);
        add_to_bucket(&self.latency, &LATENCY_BOUNDS, waited_micros);
    }

    /// A breaker has changed; `is_open` says whether any is open now.
    pub(super) fn set_open(&self, is_open: bool, has_opened: bool, now: Timestamp) {
        add(&self.opened, u64::from(has_opened));
        let since = self.open_since.load(Ordering::Relaxed);
        match (since, is_open) {
            (0, true) => self.open_since.store(now.as_micros(), Ordering::Relaxed),
            (0, false) | (_, true) => {}
            (_, false) => {
                add(&self.open_micros, now.as_micros().saturating_sub(since));
                self.open_since.store(0, Ordering::Relaxed);
            }
        }
    }

    /// The counts at `now`; the caller adds what it knows itself.
    pub(super) fn report(&self, now: Timestamp) -> LinkReport {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let since = get(&self.open_since);
        let open = if since == 0 { 0 } else { now.as_micros().saturating_sub(since) };
        LinkReport {
            opened: get(&self.opened),
            open_micros: get(&self.open_micros) + open,
            connection_errors: get(&self.connection_errors),
            timeouts: get(&self.timeouts),
            rejected_open: get(&self.rejected_open),
            rejected_full: get(&self.rejected_full),
            retries: get(&self.retries),
            error_replies: get(&self.error_replies),
            operations: get(&self.operations),
            batch_sizes: std::array::from_fn(|index| self.batch_sizes.get(index).map_or(0, get)),
            latency: std::array::from_fn(|index| self.latency.get(index).map_or(0, get)),
            latency_micros: get(&self.latency_micros),
            ..LinkReport::default()
        }
    }
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn add_to_bucket(buckets: &[AtomicU64], bounds: &[u64], value: u64) {
    let index = bounds.partition_point(|bound| *bound < value);
    buckets.get(index).iter().for_each(|bucket| add(bucket, 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_counts_the_time_in_which_a_breaker_is_open_once() {
        let stats = LinkStats::default();
        let at = Timestamp::from_secs;
        stats.set_open(true, true, at(10));
        stats.set_open(true, true, at(12));
        stats.set_open(true, false, at(13));
        assert_eq!(stats.report(at(14)).open_micros, 4_000_000);
        stats.set_open(false, false, at(15));
        let report = stats.report(at(20));
        assert_eq!((report.open_micros, report.opened), (5_000_000, 2));
    }

    #[test]
    fn value_equal_to_a_bound_is_in_its_bucket() {
        let stats = LinkStats::default();
        for size in [1, 2, 3, 64] {
            stats.add_script_call(size);
        }
        stats.add_reply(100);
        stats.add_reply(101);
        let report = stats.report(Timestamp::ZERO);
        assert_eq!((report.batch_sizes, report.operations), ([1, 1, 1, 0, 0, 0, 1], 70));
        assert_eq!((report.latency[0], report.latency[1], report.latency_micros), (1, 1, 201));
    }
}
