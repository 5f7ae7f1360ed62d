//! Error replies of the servers: the first one is logged with its text, one that lasts once a minute, and the end.
//!
//! A server that replies is connected, so neither its breaker nor a connection error shows that it does not decide: a full
//! memory, a missing permission, a malformed entry.

use std::sync::{Mutex, PoisonError};

use tidegate_core::{TimeSpan, Timestamp};

use crate::endpoint::ServerAddress;

/// Error replies of one kind are logged again after this time.
const REPEAT_INTERVAL: TimeSpan = TimeSpan::from_secs(60);
/// Error replies have ended if there was none for this time. Heartbeats write every second, so it also holds without requests.
const QUIET: TimeSpan = TimeSpan::from_secs(10);
/// Kinds of error replies that are told apart.
const MAX_KINDS: usize = 8;
/// Bytes of a text that are kept.
const MAX_TEXT: usize = 300;

/// The last error reply of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReplyReport {
    /// What the server said, or what is wrong with its reply.
    pub text: String,
    /// How long ago it arrived.
    pub age: TimeSpan,
}

/// The error replies of all servers. Written by the I/O thread.
#[derive(Debug, Default)]
pub(super) struct ErrorReplies {
    state: Mutex<ErrorReplyState>,
}

#[derive(Debug, Default)]
struct ErrorReplyState {
    last: Option<(String, Timestamp)>,
    /// Error replies since the first one; 0 if there are none now.
    count: u64,
    /// When each kind was logged.
    logged: Vec<(String, Timestamp)>,
}

impl ErrorReplies {
    /// Records an error reply of `address`.
    pub(super) fn record(&self, address: &ServerAddress, text: &str, now: Timestamp) {
        let text = shorten(text);
        if self.with(|state| state.add(text, now)) {
            tracing::warn!(
                event = "redis_error_reply",
                "{address} replies with an error: {text}; what it did not decide is decided as `on_store_failure` says"
            );
        }
    }

    /// Logs the end, if there was no error reply for a while. Called at short intervals.
    pub(super) fn check_end(&self, now: Timestamp) {
        if let Some((count, text)) = self.with(|state| state.end(now)) {
            tracing::info!(
                event = "redis_error_replies_ended",
                "no error reply of Redis for {QUIET}; there were {count}, the last one: {text}"
            );
        }
    }

    /// The last error reply.
    pub(super) fn last(&self, now: Timestamp) -> Option<ErrorReplyReport> {
        self.with(|state| {
            let (text, at) = state.last.as_ref()?;
            Some(ErrorReplyReport { text: text.clone(), age: now.since(*at) })
        })
    }

    fn with<T>(&self, access: impl FnOnce(&mut ErrorReplyState) -> T) -> T {
        access(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ErrorReplyState {
    /// Returns whether it must be logged.
    fn add(&mut self, text: &str, now: Timestamp) -> bool {
        self.count += 1;
        match &mut self.last {
            Some((last, at)) if last == text => *at = now,
            last => *last = Some((text.to_owned(), now)),
        }
        let kind = kind_of(text);
        if let Some((_, logged)) = self.logged.iter_mut().find(|(logged, _)| logged == kind) {
            let is_due = now.since(*logged) >= REPEAT_INTERVAL;
            if is_due {
                *logged = now;
            }
            return is_due;
        }
        if self.logged.len() == MAX_KINDS {
            let Some(old) = self.logged.iter().position(|(_, at)| now.since(*at) >= REPEAT_INTERVAL) else {
                return false;
            };
            self.logged.swap_remove(old);
        }
        self.logged.push((kind.to_owned(), now));
        true
    }

    /// How many error replies have ended, and the text of the last one.
    fn end(&mut self, now: Timestamp) -> Option<(u64, String)> {
        if self.count == 0 {
            return None;
        }
        let (text, _) = self.last.as_ref().filter(|(_, at)| now.since(*at) >= QUIET)?;
        self.logged.clear();
        Some((std::mem::take(&mut self.count), text.clone()))
    }
}

/// The code that a server begins an error with, such as `OOM`; the rest may name a counter.
fn kind_of(text: &str) -> &str {
    text.split(':').next().unwrap_or_default()
}

fn shorten(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OOM: &str = "OOM: command not allowed when used memory > 'maxmemory'.";

    fn at(tenth: u64) -> Timestamp {
        Timestamp::from_secs(1) + TimeSpan::from_millis(tenth * 100)
    }

    #[test]
    fn error_replies_that_last_are_logged_once_a_minute_and_their_end_once() {
        let mut state = ErrorReplyState::default();
        let (mut logged, mut ended) = (Vec::new(), Vec::new());
        for tenth in 0..2_000 {
            if tenth < 1_300 && state.add(OOM, at(tenth)) {
                logged.push(tenth);
            }
            if let Some((count, text)) = state.end(at(tenth)) {
                ended.push((tenth, count, text));
            }
        }
        assert_eq!(logged, [0, 600, 1_200]);
        assert_eq!(ended, [(1_399, 1_300, OOM.to_owned())]);
        assert!(state.add(OOM, at(2_000)), "the next ones are logged at once");
    }

    #[test]
    fn error_replies_of_several_kinds_are_logged_each_and_their_number_is_bounded() {
        let mut state = ErrorReplyState::default();
        assert!(state.add("WRONGTYPE: key a", at(0)) && !state.add("WRONGTYPE: key b", at(1)));
        let logged = (0..100).filter(|kind| state.add(&format!("E{kind}: text"), at(2))).count();
        assert_eq!((logged, state.logged.len()), (MAX_KINDS - 1, MAX_KINDS));
        assert!(state.add("E99: text", at(700)), "those of a minute ago give way");
    }

    #[test]
    fn text_of_an_error_reply_is_bounded() {
        let replies = ErrorReplies::default();
        let address = ServerAddress { host: "cache".to_owned(), port: 1 };
        replies.record(&address, &"é".repeat(1_000), at(0));
        let last = replies.last(at(20)).unwrap();
        assert_eq!((last.text.len(), last.age), (MAX_TEXT, TimeSpan::from_secs(2)));
    }
}
