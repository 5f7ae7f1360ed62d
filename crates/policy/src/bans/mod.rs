//! Whom operators have banned while the policy was in force: networks, and clients of any kind.
//!
//! [`Bans`] never change; who adds one makes new ones and puts them in the old ones' place. A request that meets no ban
//! pays one lookup for each length of prefix and each kind of client that is banned at all.

mod index;
mod subject;

use tidegate_core::Timestamp;

pub use index::Bans;
pub use subject::{Subject, SubjectError};

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Whom it shuts out.
    pub subject: Subject,
    /// Why, in the operator's words.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    /// From then on no longer; `None`: until somebody takes it back.
    pub until: Option<Timestamp>,
}

impl Ban {
    /// Whether it is over at `now`.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

#[cfg(test)]
mod tests;
