//! Records that several nodes share: bans, overrides and penalties.
//!
//! The exchange does not interpret records. Of two versions of a record the one that was changed last counts.

use std::fmt;

use tidegate_core::Timestamp;

/// A record that nodes share. Debug output hides its contents, because they may contain an API key.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedRecord {
    /// Identifies the record: its kind and its subject.
    pub id: Vec<u8>,
    /// When it was changed. Of two versions the later one counts.
    pub changed: Timestamp,
    /// When it is of no more use, by the clock of this node; `None` if never. The exchange converts it for others.
    pub expires: Option<Timestamp>,
    /// The contents; `None` if the record was removed.
    pub body: Option<Vec<u8>>,
}

impl fmt::Debug for SharedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecord")
            .field("changed", &self.changed)
            .field("is_removed", &self.body.is_none())
            .finish_non_exhaustive()
    }
}

/// What other nodes did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedEvent {
    /// The exchange works from now on, with a shared store that may be new or may have lost its contents.
    Attached,
    /// Records were changed.
    Records(Vec<SharedRecord>),
    /// A message that is not kept.
    Message(Vec<u8>),
}

/// Exchanges records with other nodes. Calls return at once; changes are sent as soon as the shared store works.
pub trait RecordExchange: fmt::Debug + Send + Sync {
    /// Publishes new versions of records.
    fn publish(&self, records: Vec<SharedRecord>);

    /// Sends a message to the nodes that are connected now, at most once.
    fn broadcast(&self, message: Vec<u8>);
}
