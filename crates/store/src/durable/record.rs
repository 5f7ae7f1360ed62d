//! The stored records, independent of the database.

use std::collections::BTreeMap;

use tidegate_core::{Algorithm, OwnedKey, Spec, Timestamp};

use crate::penalties::PenaltyEntry;

/// A ban set by an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BanRecord {
    /// The operator's reason.
    pub reason: String,
    /// When it was set.
    pub since: Timestamp,
    /// When it ends; `None` if permanent.
    pub until: Option<Timestamp>,
}

/// A limit override for one client under one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideRecord {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The parameters.
    pub spec: Spec,
    /// The operator's reason.
    pub reason: String,
    /// When it was set.
    pub since: Timestamp,
    /// When it ends; `None` if permanent.
    pub until: Option<Timestamp>,
}

/// The key of an override: the rule's name and the client as in counter keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OverrideKey {
    /// The rule's name.
    pub rule: String,
    /// The client; it may contain an API key.
    pub client: Vec<u8>,
}

impl std::fmt::Debug for OverrideKey {
    /// Redacted: a client may be an API key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OverrideKey({:?}, {} bytes)", self.rule, self.client.len())
    }
}

/// One change. Several changes are written together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DurableChange {
    /// Sets or replaces a ban of the subject.
    Ban(String, BanRecord),
    /// Removes a ban.
    Unban(String),
    /// Sets or replaces an override.
    Override(OverrideKey, OverrideRecord),
    /// Removes an override.
    RemoveOverride(OverrideKey),
    /// Sets or replaces the penalty state of a client.
    SetPenalty(PenaltyEntry),
    /// Removes a penalty state.
    RemovePenalty(OwnedKey),
    /// Removes all penalty states.
    ClearPenalties,
}

/// Everything in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Bans by subject.
    pub bans: BTreeMap<String, BanRecord>,
    /// Overrides.
    pub overrides: BTreeMap<OverrideKey, OverrideRecord>,
    /// Penalty states: violations and lock-outs.
    pub penalties: BTreeMap<OwnedKey, PenaltyEntry>,
}

impl Contents {
    /// Applies `change`.
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
