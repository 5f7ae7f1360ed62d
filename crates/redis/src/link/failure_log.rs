//! Logs failures of servers: a change once, and a failure that lasts once a minute.

use std::collections::HashMap;

use tidegate_core::{TimeSpan, Timestamp};

use super::PROBE_INTERVAL;
use super::error::{ConnectError, FailureKind};
use crate::endpoint::ServerAddress;

/// A failure that lasts is logged again after this time.
const REPEAT_INTERVAL: TimeSpan = TimeSpan::from_secs(60);
/// A server that fails and returns again and again is logged this often.
const CHANGE_INTERVAL: TimeSpan = TimeSpan::from_secs(5);

/// What was logged about a server that is gone is forgotten after this time.
const FORGET_AFTER: TimeSpan = TimeSpan::from_secs(65);

/// What was logged about each server. A failure to find the servers has no address.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    logged: HashMap<(Option<ServerAddress>, FailureKind), LoggedFailure>,
}

#[derive(Debug)]
struct LoggedFailure {
    at: Timestamp,
    is_over: bool,
}

impl FailureLog {
    /// Logs a failure, unless it is known.
    pub(super) fn failed(&mut self, error: &ConnectError, now: Timestamp) {
        let kind = error.kind();
        if !self.is_due(error.address().cloned(), kind, now) {
            return;
        }
        let interval = PROBE_INTERVAL.as_millis();
        match kind {
            FailureKind::Login => tracing::error!(event = "redis_login_failed", "{error}"),
            FailureKind::Permission => tracing::error!(event = "redis_permission_missing", "{error}"),
            FailureKind::Server => {
                tracing::warn!(event = "redis_unavailable", "{error}; retrying every {interval} ms");
            }
        }
    }

    /// Logs that a server works, if a failure was logged before.
    pub(super) fn recovered(&mut self, address: &ServerAddress) {
        if self.end(Some(address)) {
            tracing::info!(event = "redis_available", "connected to {address}");
        }
    }

    /// The servers were found.
    pub(super) fn discovered(&mut self) {
        self.end(None);
    }

    fn is_due(&mut self, address: Option<ServerAddress>, kind: FailureKind, now: Timestamp) -> bool {
        let last = self.logged.get(&(address.clone(), kind));
        let is_due = last.is_none_or(|last| {
            let interval = if last.is_over { CHANGE_INTERVAL } else { REPEAT_INTERVAL };
            now.since(last.at) >= interval
        });
        if is_due {
            // Servers that are gone for long are forgotten.
            self.logged.retain(|_, last| now.since(last.at) < FORGET_AFTER);
            self.logged.insert((address, kind), LoggedFailure { at: now, is_over: false });
        }
        is_due
    }

    /// Ends the failures of a server. Returns whether there was one.
    fn end(&mut self, address: Option<&ServerAddress>) -> bool {
        let of_server = self.logged.iter_mut().filter(|((found, _), _)| found.as_ref() == address);
        of_server.fold(false, |ended, (_, last)| ended | !std::mem::replace(&mut last.is_over, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> ServerAddress {
        ServerAddress { host: "cache".to_owned(), port }
    }

    #[test]
    fn failure_that_lasts_is_due_once_a_minute_and_per_server() {
        let mut log = FailureLog::default();
        let due: Vec<u64> = (0..1_300)
            .filter(|tenth| {
                let now = Timestamp::from_secs(1) + TimeSpan::from_millis(tenth * 100);
                // Another server works all the time.
                assert!(!log.end(Some(&address(2))));
                log.is_due(Some(address(1)), FailureKind::Server, now)
            })
            .collect();
        assert_eq!(due, [0, 600, 1_200]);
        assert!(log.is_due(Some(address(3)), FailureKind::Server, Timestamp::from_secs(2)));
        assert!(log.is_due(None, FailureKind::Login, Timestamp::from_secs(2)));
    }

    #[test]
    fn recovery_is_logged_once_and_the_next_failure_again() {
        let mut log = FailureLog::default();
        let server = address(1);
        let fails_at = |log: &mut FailureLog, second| {
            log.is_due(Some(server.clone()), FailureKind::Server, Timestamp::from_secs(second))
        };
        assert!(fails_at(&mut log, 1));
        assert!(log.end(Some(&address(1))) && !log.end(Some(&address(1))));
        assert!(!fails_at(&mut log, 2), "the server fails and returns too often");
        assert!(fails_at(&mut log, 6));
        assert!(log.end(Some(&address(1))));
    }
}
