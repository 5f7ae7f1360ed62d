//! What is kept: data that means something to others, and nothing of a database.

use std::collections::BTreeMap;

use tidegate_core::{Algorithm, Spec, Timestamp};

use crate::penalties::{PenaltyEntry, PenaltyKey};

/// Somebody whom an operator shut out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BanRecord {
    /// Why, in the operator's words.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    /// From then on no longer; `None`: until somebody takes it back.
    pub until: Option<Timestamp>,
}

/// Another limit for one client under one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideRecord {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its parameters.
    pub spec: Spec,
    /// Why, in the operator's words.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    /// From then on no longer; `None`: until somebody takes it back.
    pub until: Option<Timestamp>,
}

/// Whose limit is overridden: a rule by its name, a client by the bytes that counters know it by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OverrideKey {
    /// The rule's name.
    pub rule: String,
    /// The client; it may hold an API key.
    pub client: Vec<u8>,
}

impl std::fmt::Debug for OverrideKey {
    /// Redacted: a client may be an API key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OverrideKey({:?}, {} bytes)", self.rule, self.client.len())
    }
}

/// One thing to write. Several are written together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DurableChange {
    /// Somebody is banned, or banned anew; the text says whom.
    Ban(String, BanRecord),
    /// No longer.
    Unban(String),
    /// A limit is overridden, or overridden anew.
    Override(OverrideKey, OverrideRecord),
    /// No longer.
    RemoveOverride(OverrideKey),
    /// A client is about to be locked out, or is.
    SetPenalty(PenaltyEntry),
    /// No longer.
    RemovePenalty(PenaltyKey),
    /// Nobody is any longer.
    ClearPenalties,
}

/// Everything that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Bans, by whom they shut out.
    pub bans: BTreeMap<String, BanRecord>,
    /// Overrides.
    pub overrides: BTreeMap<OverrideKey, OverrideRecord>,
    /// Who is locked out, and who is about to be.
    pub penalties: BTreeMap<PenaltyKey, PenaltyEntry>,
}

impl Contents {
    /// The contents after `change`.
    pub fn apply(&mut self, change: DurableChange) {
        match change {
            DurableChange::Ban(subject, ban) => {
                self.bans.insert(subject, ban);
            }
            DurableChange::Unban(subject) => {
                self.bans.remove(&subject);
            }
            DurableChange::Override(key, replacement) => {
                self.overrides.insert(key, replacement);
            }
            DurableChange::RemoveOverride(key) => {
                self.overrides.remove(&key);
            }
            DurableChange::SetPenalty(entry) => {
                self.penalties.insert(entry.key.clone(), entry);
            }
            DurableChange::RemovePenalty(key) => {
                self.penalties.remove(&key);
            }
            DurableChange::ClearPenalties => self.penalties.clear(),
        }
    }
}
