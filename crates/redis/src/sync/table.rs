//! The copies of counters in this process.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use smallvec::SmallVec;
use tidegate_core::CounterState;
use tidegate_core::{Check, Cost, CounterKey, Ledger, Limit, Outcome, Timestamp};

use super::counter::SyncCounter;

const SHARDS: usize = 64;
/// The average size of a counter with its name and client.
const COUNTER_BYTES: usize = 512;
/// The fewest counters of a shard.
const MIN_COUNTERS: usize = 16;

/// The copies, within a cap.
#[derive(Debug)]
pub(super) struct SyncTable {
    hasher: RandomState,
    shards: Box<[Mutex<SyncShard>]>,
    /// The largest number of counters in a shard.
    max_counters: usize,
}

#[derive(Debug, Default)]
pub(super) struct SyncShard {
    counters: HashTable<HashedCounter>,
    /// When a full shard was last searched for idle counters.
    searched_at: Timestamp,
}

#[derive(Debug)]
struct HashedCounter {
    hash: u64,
    counter: SyncCounter,
}

/// The place of a counter in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyncPlace {
    pub(super) shard: usize,
    pub(super) hash: u64,
}

impl SyncTable {
    /// A table whose counters take about `max_memory` bytes at most.
    pub(super) fn new(max_memory: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            max_counters: (max_memory / COUNTER_BYTES / SHARDS).max(MIN_COUNTERS),
        }
    }

    /// Locks the counters of `checks`, in an order that avoids deadlocks.
    pub(super) fn lock(&self, checks: &[Check<'_>]) -> LockedTable<'_> {
        let places: SmallVec<[SyncPlace; 4]> = checks.iter().map(|check| self.place(check.key)).collect();
        let mut shards: SmallVec<[usize; 4]> = places.iter().map(|place| place.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        let guards =
            shards.iter().filter_map(|shard| Some((*shard, lock(self.shards.get(*shard)?)))).collect();
        LockedTable { guards, places, max_counters: self.max_counters }
    }

    /// Calls `change` with the counter of `key`, if there is one.
    pub(super) fn change(&self, key: CounterKey<'_>, change: impl FnOnce(&mut SyncCounter)) {
        let place = self.place(key);
        self.change_where(place, |counter| counter.is(key), change);
    }

    /// Whether there is a copy of the counter of `key` that an exchange has covered.
    pub(super) fn has_view(&self, key: CounterKey<'_>) -> bool {
        let has_view = |counter: &mut SyncCounter| counter.has_view();
        self.change_where(self.place(key), |counter| counter.is(key), has_view).unwrap_or(false)
    }

    /// Calls `change` with the counter at `place` for which `is_it` holds, if there is one.
    pub(super) fn change_where<R>(
        &self,
        place: SyncPlace,
        is_it: impl Fn(&SyncCounter) -> bool,
        change: impl FnOnce(&mut SyncCounter) -> R,
    ) -> Option<R> {
        let mut shard = lock(self.shards.get(place.shard)?);
        let found = shard.counters.find_mut(place.hash, |entry| is_it(&entry.counter))?;
        Some(change(&mut found.counter))
    }

    /// Removes idle counters, and calls `visit` with all others, one shard at a time.
    pub(super) fn visit_all(&self, now: Timestamp, mut visit: impl FnMut(SyncPlace, &mut SyncCounter)) {
        for (shard, counters) in self.shards.iter().enumerate() {
            lock(counters).counters.retain(|HashedCounter { hash, counter }| {
                let is_kept = !counter.is_idle(now);
                if is_kept {
                    visit(SyncPlace { shard, hash: *hash }, counter);
                }
                is_kept
            });
        }
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).counters.len()).sum()
    }

    pub(super) fn place(&self, key: CounterKey<'_>) -> SyncPlace {
        let hash = self.hasher.hash_one(key);
        let shard = usize::try_from(hash >> 32).unwrap_or_default() % SHARDS;
        SyncPlace { shard, hash }
    }
}

/// The locked counters of a decision's checks, by position.
pub(super) struct LockedTable<'t> {
    guards: SmallVec<[(usize, MutexGuard<'t, SyncShard>); 4]>,
    places: SmallVec<[SyncPlace; 4]>,
    max_counters: usize,
}

impl LockedTable<'_> {
    /// The counter of the check at `position`, made by `create` if it is missing; `None` if there is no room.
    pub(super) fn get_or_insert(
        &mut self,
        position: usize,
        key: CounterKey<'_>,
        now: Timestamp,
        create: impl FnOnce() -> SyncCounter,
    ) -> Option<&mut SyncCounter> {
        let max_counters = self.max_counters;
        let SyncPlace { shard, hash } = *self.places.get(position)?;
        let shard =
            self.guards.iter_mut().find(|(index, _)| *index == shard).map(|(_, guard)| &mut **guard)?;
        if shard.counters.find(hash, |entry| entry.counter.is(key)).is_none() {
            if shard.counters.len() >= max_counters && shard.searched_at != now {
                shard.searched_at = now;
                shard.counters.retain(|entry| !entry.counter.is_idle(now));
            }
            if shard.counters.len() >= max_counters {
                return None;
            }
            shard.counters.insert_unique(hash, HashedCounter { hash, counter: create() }, |entry| entry.hash);
        }
        shard.counters.find_mut(hash, |entry| entry.counter.is(key)).map(|entry| &mut entry.counter)
    }

    /// The counter of the check at `position`, if there is one.
    pub(super) fn get(&self, position: usize, key: CounterKey<'_>) -> Option<&SyncCounter> {
        let SyncPlace { shard, hash } = *self.places.get(position)?;
        let (_, shard) = self.guards.iter().find(|(index, _)| *index == shard)?;
        shard.counters.find(hash, |entry| entry.counter.is(key)).map(|entry| &entry.counter)
    }

    fn get_mut(&mut self, position: usize, key: CounterKey<'_>) -> Option<&mut SyncCounter> {
        let SyncPlace { shard, hash } = *self.places.get(position)?;
        let (_, shard) = self.guards.iter_mut().find(|(index, _)| *index == shard)?;
        shard.counters.find_mut(hash, |entry| entry.counter.is(key)).map(|entry| &mut entry.counter)
    }
}

/// The ledger of a decision over copies. A counter that is missing is unused.
pub(super) struct SyncLedger<'d, 't> {
    pub(super) table: LockedTable<'t>,
    pub(super) checks: &'d [Check<'d>],
    /// The limits in force.
    pub(super) limits: &'d [Limit],
    pub(super) now: Timestamp,
}

impl Ledger for SyncLedger<'_, '_> {
    fn evaluate(&self, check: usize, cost: Cost) -> Outcome {
        let (key, limit) = (self.checks[check].key, &self.limits[check]);
        match self.table.get(check, key) {
            Some(counter) => counter.evaluate(limit, self.now, cost),
            None => limit.evaluate(&CounterState::default(), self.now, cost),
        }
    }

    fn charge(&mut self, check: usize, cost: Cost) {
        let now = self.now;
        if let Some(counter) = self.table.get_mut(check, self.checks[check].key) {
            counter.charge(now, cost);
        }
    }
}

fn lock(shard: &Mutex<SyncShard>) -> MutexGuard<'_, SyncShard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
