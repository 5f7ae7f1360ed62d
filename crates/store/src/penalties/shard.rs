//! A part of the table.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tidegate_core::{Key, PenaltyState, Timestamp};

use super::{PenaltyChanges, PenaltyEntry, PenaltyKey};

/// Records, within a number and a size.
#[derive(Debug)]
pub(super) struct Shard {
    table: HashTable<Kept>,
    most: usize,
    /// What the names of clients take, and may take.
    bytes: usize,
    most_bytes: usize,
    /// Gone since changes were last taken; at most as many as there can be records.
    removed: Vec<PenaltyKey>,
    is_partial: bool,
}

#[derive(Debug)]
struct Kept {
    hash: u64,
    penalised: PenaltyEntry,
    is_changed: bool,
}

impl Shard {
    pub(super) fn new(most: usize, most_bytes: usize) -> Self {
        Self { table: HashTable::new(), most, bytes: 0, most_bytes, removed: Vec::new(), is_partial: false }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PenaltyEntry> {
        self.table.iter().map(|kept| &kept.penalised)
    }

    pub(super) fn find(&self, hash: u64, key: Key<'_>) -> Option<&PenaltyEntry> {
        self.table.find(hash, |kept| kept.penalised.key.is(key)).map(|kept| &kept.penalised)
    }

    /// Replaces the record of `key`, the default if there is none, by what `change` makes of it: a record and the
    /// instant from which on it is forgotten. `None` if there is no room.
    pub(super) fn update(
        &mut self,
        hash: u64,
        key: Key<'_>,
        now: Timestamp,
        change: impl FnOnce(PenaltyState) -> (PenaltyState, Timestamp),
    ) -> Option<PenaltyState> {
        if let Some(kept) = self.table.find_mut(hash, |kept| kept.penalised.key.is(key)) {
            let (record, forgotten) = change(kept.penalised.record);
            if kept.penalised.record != record {
                kept.penalised.record = record;
                kept.penalised.forgotten = forgotten;
                kept.is_changed = true;
            }
            return Some(record);
        }
        self.make_room(key.client.len(), now)?;
        let (record, forgotten) = change(PenaltyState::default());
        let penalised = PenaltyEntry { key: PenaltyKey::of(key), record, forgotten };
        self.bytes += key.client.len();
        self.table.insert_unique(hash, Kept { hash, penalised, is_changed: true }, |kept| kept.hash);
        Some(record)
    }

    pub(super) fn remove(&mut self, hash: u64, key: Key<'_>) -> bool {
        match self.table.entry(hash, |kept| kept.penalised.key.is(key), |kept| kept.hash) {
            Entry::Occupied(entry) => {
                let (kept, _) = entry.remove();
                self.note_gone(kept.penalised);
                true
            }
            Entry::Vacant(_) => false,
        }
    }

    pub(super) fn take_changes(&mut self, changes: &mut PenaltyChanges) {
        for kept in self.table.iter_mut().filter(|kept| kept.is_changed) {
            kept.is_changed = false;
            changes.set.push(kept.penalised.clone());
        }
        changes.removed.append(&mut self.removed);
        changes.is_partial |= std::mem::take(&mut self.is_partial);
    }

    /// Room for one more of so many bytes: those who are forgotten go, then those who have done least. Nobody who is
    /// locked out does.
    fn make_room(&mut self, bytes: usize, now: Timestamp) -> Option<()> {
        let has_room =
            |shard: &Self| shard.table.len() < shard.most && shard.bytes + bytes <= shard.most_bytes;
        if has_room(self) {
            return Some(());
        }
        let forgotten: Vec<_> = self
            .table
            .extract_if(|kept| kept.penalised.forgotten <= now)
            .map(|kept| kept.penalised)
            .collect();
        for penalised in forgotten {
            self.note_gone(penalised);
        }
        while !has_room(self) {
            let free = self.table.iter().filter(|kept| kept.penalised.record.lock_out(now).is_none());
            let least = free.min_by_key(|kept| (kept.penalised.record.level, kept.penalised.forgotten))?;
            let (hash, key) = (least.hash, least.penalised.key.clone());
            self.remove(hash, key.as_key());
        }
        Some(())
    }

    fn note_gone(&mut self, penalised: PenaltyEntry) {
        self.bytes = self.bytes.saturating_sub(penalised.key.client.len());
        if self.removed.len() < self.most {
            self.removed.push(penalised.key);
        } else {
            self.is_partial = true;
        }
    }
}
