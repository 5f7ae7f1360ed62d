//! One shard of the table.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tidegate_core::{CounterKey, OwnedKey, PenaltyState, Timestamp};

use super::{PenaltyChanges, PenaltyEntry};

/// Entries, limited in number and bytes.
#[derive(Debug)]
pub(super) struct PenaltyShard {
    table: HashTable<ShardEntry>,
    max: usize,
    /// The bytes of the client names, and their limit.
    bytes: usize,
    max_bytes: usize,
    /// Keys removed since the last `take_changes`; at most `max`.
    removed: Vec<OwnedKey>,
    is_partial: bool,
    /// Lock-outs that were evicted.
    dropped: u64,
}

#[derive(Debug)]
struct ShardEntry {
    hash: u64,
    penalty: PenaltyEntry,
    is_changed: bool,
}

impl PenaltyShard {
    pub(super) fn new(max: usize, max_bytes: usize) -> Self {
        let (table, removed) = (HashTable::new(), Vec::new());
        Self { table, max, bytes: 0, max_bytes, removed, is_partial: false, dropped: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The number of lock-outs that were evicted for harder ones.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PenaltyEntry> {
        self.table.iter().map(|entry| &entry.penalty)
    }

    pub(super) fn find(&self, hash: u64, key: CounterKey<'_>) -> Option<&PenaltyEntry> {
        self.table.find(hash, |entry| entry.penalty.key.as_key() == key).map(|entry| &entry.penalty)
    }

    /// Replaces the state of `key`, or the default state, by the result of `change`: a state and its expiry. `None` if there
    /// is no room.
    pub(super) fn update(
        &mut self,
        hash: u64,
        key: CounterKey<'_>,
        now: Timestamp,
        change: impl FnOnce(PenaltyState) -> (PenaltyState, Timestamp),
    ) -> Option<PenaltyState> {
        if let Some(entry) = self.table.find_mut(hash, |entry| entry.penalty.key.as_key() == key) {
            let (record, expires_at) = change(entry.penalty.record);
            if entry.penalty.record != record {
                entry.penalty.record = record;
                entry.penalty.expires_at = expires_at;
                entry.is_changed = true;
                if record.lock_out(now).is_some() {
                    self.limit_lock_outs(now);
                }
            }
            return Some(record);
        }
        self.make_room(key.client.len(), now)?;
        let (record, expires_at) = change(PenaltyState::default());
        let penalty = PenaltyEntry { key: key.into(), record, expires_at };
        self.bytes += key.client.len();
        self.table.insert_unique(hash, ShardEntry { hash, penalty, is_changed: true }, |entry| entry.hash);
        if record.lock_out(now).is_some() {
            self.limit_lock_outs(now);
        }
        Some(record)
    }

    pub(super) fn remove(&mut self, hash: u64, key: CounterKey<'_>) -> bool {
        match self.table.entry(hash, |entry| entry.penalty.key.as_key() == key, |entry| entry.hash) {
            Entry::Occupied(entry) => {
                let (entry, _) = entry.remove();
                self.note_removed(entry.penalty);
                true
            }
            Entry::Vacant(_) => false,
        }
    }

    pub(super) fn take_changes(&mut self, changes: &mut PenaltyChanges) {
        for entry in self.table.iter_mut().filter(|entry| entry.is_changed) {
            entry.is_changed = false;
            changes.set.push(entry.penalty.clone());
        }
        changes.removed.append(&mut self.removed);
        changes.is_partial |= std::mem::take(&mut self.is_partial);
    }

    /// Makes room for one more entry with a name of `bytes`. Evicts expired entries first, then those with the lowest level,
    /// but never a client that is locked out.
    fn make_room(&mut self, bytes: usize, now: Timestamp) -> Option<()> {
        let has_room = |shard: &Self| shard.table.len() < shard.max && shard.bytes + bytes <= shard.max_bytes;
        if has_room(self) {
            return Some(());
        }
        let expires_at: Vec<_> = self
            .table
            .extract_if(|entry| entry.penalty.expires_at <= now)
            .map(|entry| entry.penalty)
            .collect();
        for penalty in expires_at {
            self.note_removed(penalty);
        }
        while !has_room(self) {
            let free = self.table.iter().filter(|entry| entry.penalty.record.lock_out(now).is_none());
            let least = free.min_by_key(|entry| (entry.penalty.record.level, entry.penalty.expires_at))?;
            let (hash, key) = (least.hash, least.penalty.key.clone());
            self.remove(hash, key.as_key());
        }
        Some(())
    }

    /// Evicts lock-outs that take more than seven eighths of the shard: those with the lowest level, and of these those that end
    /// first. The rest is left to violations of other clients, so that a harder offender can always get in.
    fn limit_lock_outs(&mut self, now: Timestamp) {
        let (max, max_bytes) = (self.max - self.max / 8, self.max_bytes - self.max_bytes / 8);
        if self.table.len() <= max && self.bytes <= max_bytes {
            return;
        }
        loop {
            let is_locked_out = |entry: &&ShardEntry| entry.penalty.record.lock_out(now).is_some();
            let locked_out = || self.table.iter().filter(is_locked_out);
            let bytes: usize = locked_out().map(|entry| entry.penalty.key.client.len()).sum();
            if locked_out().count() <= max && bytes <= max_bytes {
                return;
            }
            let least = locked_out()
                .min_by_key(|entry| (entry.penalty.record.level, entry.penalty.record.locked_until));
            let Some(least) = least else { return };
            let (hash, key) = (least.hash, least.penalty.key.clone());
            self.remove(hash, key.as_key());
            self.dropped += 1;
        }
    }

    fn note_removed(&mut self, penalty: PenaltyEntry) {
        self.bytes = self.bytes.saturating_sub(penalty.key.client.len());
        if self.removed.len() < self.max {
            self.removed.push(penalty.key);
        } else {
            self.is_partial = true;
        }
    }
}
