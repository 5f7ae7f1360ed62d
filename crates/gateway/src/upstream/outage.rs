//! Failures of a server for operators: the first one is logged with its cause, then one a minute while they last, and their end.
//!
//! Only what a response of the server cannot explain counts: no connection, no response, or none in time. An outage has ended when
//! the server has responded and nothing has failed for a while, so a server that fails now and then logs a few lines a minute at
//! most. As long as a server works, nothing is written and no clock is read.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::{TimeSpan, Timestamp};

/// An outage that lasts is logged again after this time.
const REPEAT_INTERVAL: TimeSpan = TimeSpan::from_secs(60);
/// An outage has ended if nothing has failed for this time.
const QUIET: TimeSpan = TimeSpan::from_secs(5);
/// Bytes of a cause that are kept.
const MAX_CAUSE: usize = 200;

/// The failures of one server. All workers share it.
#[derive(Debug, Default)]
pub(crate) struct OutageState {
    /// The latest attempt has failed.
    is_failing: AtomicBool,
    records: Mutex<OutageRecords>,
}

#[derive(Debug, Default)]
struct OutageRecords {
    last: Option<LastFailure>,
    /// Since when the failures last, how many there are, and when that was logged; `None` if there are none now.
    current: Option<CurrentOutage>,
}

#[derive(Debug)]
struct LastFailure {
    cause: String,
    at: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct CurrentOutage {
    since: Timestamp,
    failures: u64,
    logged: Timestamp,
}

/// The last failure of a server, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutageStatus {
    /// Why it failed.
    pub cause: String,
    /// How long ago.
    pub age: TimeSpan,
    /// For how long requests have been failing; `None` if the server has responded since.
    pub lasts: Option<TimeSpan>,
    /// Failures since the outage began; 0 once it has ended.
    pub failures: u64,
}

/// What is logged about an outage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutageNotice {
    pub(crate) cause: String,
    pub(crate) failures: u64,
    /// From the first to the last failure, in whole seconds.
    pub(crate) lasted: TimeSpan,
}

impl OutageState {
    /// An attempt has failed. Returns what must be logged.
    #[cold]
    pub(crate) fn record(&self, cause: &str, now: Timestamp) -> Option<OutageNotice> {
        let mut records = self.lock();
        self.is_failing.store(true, Ordering::Relaxed);
        records.add(cause.get(..cause.floor_char_boundary(MAX_CAUSE)).unwrap_or_default(), now)
    }

    /// The server has responded.
    #[inline]
    pub(crate) fn record_response(&self) {
        // The load avoids a write, which would invalidate the cache line on other CPU cores.
        if self.is_failing.load(Ordering::Relaxed) {
            self.is_failing.store(false, Ordering::Relaxed);
        }
    }

    /// The end of an outage that must be logged. Called at short intervals.
    pub(crate) fn check_end(&self, now: Timestamp) -> Option<OutageNotice> {
        let mut records = self.lock();
        if self.is_failing.load(Ordering::Relaxed) { None } else { records.end(now) }
    }

    /// The last failure.
    pub(crate) fn status(&self, now: Timestamp) -> Option<OutageStatus> {
        let records = self.lock();
        let last = records.last.as_ref()?;
        let is_failing = self.is_failing.load(Ordering::Relaxed);
        let lasts = records.current.filter(|_| is_failing).map(|current| now.since(current.since));
        Some(OutageStatus {
            cause: last.cause.clone(),
            age: now.since(last.at),
            lasts,
            failures: records.current.map_or(0, |current| current.failures),
        })
    }

    fn lock(&self) -> MutexGuard<'_, OutageRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutageRecords {
    fn add(&mut self, cause: &str, now: Timestamp) -> Option<OutageNotice> {
        match &mut self.last {
            Some(last) if last.cause == cause => last.at = now,
            last => *last = Some(LastFailure { cause: cause.to_owned(), at: now }),
        }
        let is_first = self.current.is_none();
        let current = self.current.get_or_insert(CurrentOutage { since: now, failures: 0, logged: now });
        current.failures += 1;
        if !is_first && now.since(current.logged) < REPEAT_INTERVAL {
            return None;
        }
        current.logged = now;
        Some(current.notice(cause, now))
    }

    fn end(&mut self, now: Timestamp) -> Option<OutageNotice> {
        let last = self.last.as_ref().filter(|last| now.since(last.at) >= QUIET)?;
        Some(self.current.take()?.notice(&last.cause, last.at))
    }
}

impl CurrentOutage {
    fn notice(self, cause: &str, until: Timestamp) -> OutageNotice {
        let lasted = TimeSpan::from_secs(until.since(self.since).as_secs_ceil());
        OutageNotice { cause: cause.to_owned(), failures: self.failures, lasted }
    }
}

/// Why no connection was opened, without the number of the error.
pub(crate) fn describe_connect_error(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" (os error ").map_or(&*text, |(text, _)| text);
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::TimedOut => "connect timed out".to_owned(),
        _ => format!("cannot connect: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: &str = "connection refused";

    fn at(tenth: u64) -> Timestamp {
        Timestamp::from_secs(1) + TimeSpan::from_millis(tenth * 100)
    }

    #[test]
    fn outage_is_logged_at_its_first_failure_once_a_minute_and_at_its_end() {
        let outage = OutageState::default();
        let (mut logged, mut ended) = (Vec::new(), Vec::new());
        for tenth in 0..2_000 {
            if tenth >= 1_300 {
                outage.record_response();
            } else if outage.record(REFUSED, at(tenth)).is_some() {
                logged.push(tenth);
            }
            if let Some(OutageNotice { failures, lasted, .. }) = outage.check_end(at(tenth)) {
                ended.push((tenth, failures, lasted));
            }
        }
        assert_eq!(logged, [0, 600, 1_200]);
        assert_eq!(ended, [(1_349, 1_300, TimeSpan::from_secs(130))]);
        assert!(outage.record(REFUSED, at(2_000)).is_some(), "the next outage is logged at once");
    }

    #[test]
    fn server_that_fails_every_other_time_is_logged_once_a_minute() {
        let outage = OutageState::default();
        let mut lines = 0;
        for tenth in 0..1_200 {
            outage.record_response();
            lines += u32::from(outage.check_end(at(tenth)).is_some());
            lines += u32::from(outage.record(REFUSED, at(tenth)).is_some());
        }
        assert_eq!(lines, 2);
    }

    #[test]
    fn outage_without_a_response_has_no_end() {
        let outage = OutageState::default();
        assert_eq!(outage.status(at(0)), None);
        assert!(outage.record(REFUSED, at(0)).is_some() && outage.record("no response", at(10)).is_none());
        assert_eq!(outage.check_end(at(5_000)), None);
        let expected = |lasts, failures| {
            let (cause, age) = ("no response".to_owned(), TimeSpan::from_secs(499));
            Some(OutageStatus { cause, age, lasts, failures })
        };
        assert_eq!(outage.status(at(5_000)), expected(Some(TimeSpan::from_secs(500)), 2));
        outage.record_response();
        assert_eq!(outage.status(at(5_000)), expected(None, 2));
        assert!(outage.check_end(at(5_000)).is_some());
        assert_eq!(outage.status(at(5_000)), expected(None, 0));
    }

    #[test]
    fn connect_error_is_described_without_its_number() {
        let describe = |error: io::Error| describe_connect_error(&error);
        assert_eq!(describe(io::Error::from_raw_os_error(111)), REFUSED);
        let unreachable = describe(io::Error::from_raw_os_error(113));
        assert_eq!(unreachable, "cannot connect: No route to host");
        assert_eq!(describe(io::Error::other("failed to lookup")), "cannot connect: failed to lookup");
    }
}
