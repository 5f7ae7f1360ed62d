//! Bans that operators add at run time: of networks, and of clients of any kind.
//!
//! [`Bans`] are immutable: to add a ban, build a new index and replace the old one. A request without a ban costs one
//! lookup for each prefix length and each kind of client that has a ban.

mod index;
mod subject;

use tidegate_core::Timestamp;

pub use index::Bans;
pub use subject::{Subject, SubjectError};

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The network or client that is banned.
    pub subject: Subject,
    /// The reason that the operator gave.
    pub reason: String,
    /// When the ban was added.
    pub since: Timestamp,
    /// When the ban ends; `None` if it is permanent.
    pub until: Option<Timestamp>,
}

impl Ban {
    /// Whether the ban has expired at `now`.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

#[cfg(test)]
mod tests;
