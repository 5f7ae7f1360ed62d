//! Lock-outs, and the violations that lead to them.
//!
//! A bounded table with an entry for each client that has violated a rule with a penalty, until the entry expires. The
//! arithmetic is in [`Penalty`]. A lookup costs one load if the shard is empty, and a short lock otherwise. When the table is
//! full, expired entries are evicted first, then those with the lowest level that are not locked out. Lock-outs take at most
//! seven eighths of the table: beyond that, the one with the lowest level that ends first is evicted, so the hardest offenders
//! stay. Violations without room are not recorded; the limits still apply.

mod shard;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use tidegate_core::{CounterKey, OwnedKey, Penalty, PenaltyState, TimeSpan, Timestamp};

use crate::memory::hash::KeyHasher;
use shard::PenaltyShard;

/// The number of shards.
const SHARDS: usize = 64;
/// The default number of entries.
const DEFAULT_CAP: usize = 65_536;
/// The average size of a client name in the cap; a few are longer.
const CLIENT_BYTES: usize = 128;
/// Longer names are not recorded, so that one client cannot take the room of hundreds.
const LONGEST_CLIENT: usize = 4 << 10;

/// Lock-outs and violations, within a cap.
pub struct Penalties {
    hasher: KeyHasher,
    parts: Box<[ShardLock]>,
    /// Counts the changes.
    version: AtomicU64,
    /// Violations that were not recorded.
    unrecorded: AtomicU64,
    /// Called for each violation on this node.
    listener: OnceLock<ViolationListener>,
    /// Called for each entry that is lifted on this node.
    lift_listener: OnceLock<LiftListener>,
}

/// Called with the entry after a violation; it must not block. Violations during a lock-out are not reported.
pub type ViolationListener = Box<dyn Fn(&PenaltyEntry) + Send + Sync>;

/// Called with the key of a lifted entry; it must not block.
pub type LiftListener = Box<dyn Fn(&OwnedKey) + Send + Sync>;

impl fmt::Debug for Penalties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Penalties").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct ShardLock {
    /// The number of entries: usually 0, and then there is nothing to lock.
    count: AtomicUsize,
    shard: Mutex<PenaltyShard>,
}

/// The penalty state of one client under one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PenaltyEntry {
    /// The client and the rule.
    pub key: OwnedKey,
    /// Its violations and lock-outs.
    pub record: PenaltyState,
    /// When the state has decayed completely.
    pub expires_at: Timestamp,
}

/// The changes since the last call of [`take_changes`](Penalties::take_changes).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PenaltyChanges {
    /// New or changed entries.
    pub set: Vec<PenaltyEntry>,
    /// Removed entries: expired, removed by an operator, or evicted.
    pub removed: Vec<OwnedKey>,
    /// Not all removed entries are listed: replace the copy by a [`snapshot`](Penalties::snapshot).
    pub is_partial: bool,
}

impl Default for Penalties {
    fn default() -> Self {
        Self::with_cap(DEFAULT_CAP)
    }
}

impl Penalties {
    /// A table of at most `records` entries, rounded up to a multiple of 64; on average each takes at most about 250 bytes.
    pub fn with_cap(records: usize) -> Self {
        let each = records.div_ceil(SHARDS).max(1);
        let part = |_| ShardLock {
            count: AtomicUsize::new(0),
            shard: Mutex::new(PenaltyShard::new(each, each.saturating_mul(CLIENT_BYTES).max(LONGEST_CLIENT))),
        };
        Self {
            hasher: KeyHasher::random(),
            parts: (0..SHARDS).map(part).collect(),
            version: AtomicU64::new(0),
            unrecorded: AtomicU64::new(0),
            listener: OnceLock::new(),
            lift_listener: OnceLock::new(),
        }
    }

    /// Calls `listener` for each violation on this node from now on, so that other nodes can count it too. Only the first
    /// listener is used.
    pub fn on_violation(&self, listener: ViolationListener) {
        let _ = self.listener.set(listener);
    }

    /// Calls `listener` for each entry that is [lifted](Self::lift) on this node from now on, so that other nodes can lift it
    /// too. Only the first listener is used.
    pub fn on_lift(&self, listener: LiftListener) {
        let _ = self.lift_listener.set(listener);
    }

    /// The remaining lock-out of `key`; `None` if it is not locked out.
    #[inline]
    pub fn lock_out(&self, key: CounterKey<'_>, now: Timestamp) -> Option<TimeSpan> {
        let hash = self.hasher.hash(&key);
        let part = self.part(hash)?;
        if part.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        part.with(|shard| shard.find(hash, key).and_then(|found| found.record.lock_out(now)))
    }

    /// Records a violation of a rule with this `penalty` by `key`. Returns the lock-out that is active now, if any.
    pub fn record_violation(
        &self,
        key: CounterKey<'_>,
        penalty: &Penalty,
        now: Timestamp,
    ) -> Option<TimeSpan> {
        let Some(listener) = self.listener.get() else { return self.count_violation(key, penalty, now) };
        if let Some(left) = self.lock_out(key, now) {
            return Some(left);
        }
        let lock_out = self.count_violation(key, penalty, now);
        if let Some(entry) = self.find(key) {
            listener(&entry);
        }
        lock_out
    }

    /// Records a violation that another node reported, like [`record_violation`](Self::record_violation) but without calling
    /// the listener.
    pub fn count_violation(
        &self,
        key: CounterKey<'_>,
        penalty: &Penalty,
        now: Timestamp,
    ) -> Option<TimeSpan> {
        if key.client.len() > LONGEST_CLIENT {
            self.unrecorded.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let hash = self.hasher.hash(&key);
        let violated = |record| {
            let record = penalty.violate(record, now);
            (record, penalty.expires_at(&record))
        };
        let record = self.part(hash)?.with(|shard| shard.update(hash, key, now, violated));
        self.version.fetch_add(1, Ordering::AcqRel);
        if record.is_none() {
            self.unrecorded.fetch_add(1, Ordering::Relaxed);
        }
        record?.lock_out(now)
    }

    /// Merges the entry of another node: of two states the more severe one stays, so merging is idempotent and its order does
    /// not matter. Returns whether this changed anything.
    pub fn merge(&self, entry: &PenaltyEntry, now: Timestamp) -> bool {
        let record = entry.record.rebase(now);
        let expires_at = entry.expires_at - entry.record.since.since(record.since);
        if expires_at <= now || entry.key.client.len() > LONGEST_CLIENT {
            return false;
        }
        let severity =
            |state: &PenaltyState| (state.locked_until, state.level, state.violations, state.since);
        let key = entry.key.as_key();
        let hash = self.hasher.hash(&key);
        let merged = self.part(hash).is_some_and(|part| {
            part.with(|shard| {
                let is_newer =
                    shard.find(hash, key).is_none_or(|known| severity(&known.record) < severity(&record));
                is_newer && shard.update(hash, key, now, |_| (record, expires_at)).is_some()
            })
        });
        if merged {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        merged
    }

    /// The entry of `key`.
    pub fn find(&self, key: CounterKey<'_>) -> Option<PenaltyEntry> {
        let hash = self.hasher.hash(&key);
        self.part(hash)?.with(|shard| shard.find(hash, key).cloned())
    }

    /// Removes the entry of `key`. Returns whether there was one.
    pub fn remove(&self, key: CounterKey<'_>) -> bool {
        let hash = self.hasher.hash(&key);
        let removed = self.part(hash).is_some_and(|part| part.with(|shard| shard.remove(hash, key)));
        if removed {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        removed
    }

    /// Like [`remove`](Self::remove), on all nodes.
    pub fn lift(&self, key: CounterKey<'_>) -> bool {
        let is_removed = self.remove(key);
        if is_removed && let Some(listener) = self.lift_listener.get() {
            listener(&OwnedKey::from(key));
        }
        is_removed
    }

    /// All clients that are locked out, the longest lock-out first.
    pub fn locked_out(&self, now: Timestamp) -> Vec<PenaltyEntry> {
        let mut locked = self.collect(|entry| entry.record.lock_out(now).is_some());
        locked.sort_by_key(|entry| std::cmp::Reverse(entry.record.locked_until));
        locked
    }

    /// All entries that have not expired at `now`, in no order.
    pub fn snapshot(&self, now: Timestamp) -> Vec<PenaltyEntry> {
        self.collect(|entry| entry.expires_at > now)
    }

    /// Adds the entries of a [`snapshot`](Self::snapshot), perhaps from before a restart and by another clock. Existing entries
    /// are kept.
    pub fn restore(&self, records: impl IntoIterator<Item = PenaltyEntry>, now: Timestamp) {
        for entry in records {
            let record = entry.record.rebase(now);
            let ahead = entry.record.since.since(record.since);
            let expires_at = entry.expires_at - ahead;
            if expires_at <= now || entry.key.client.len() > LONGEST_CLIENT {
                continue;
            }
            let key = entry.key.as_key();
            let hash = self.hasher.hash(&key);
            if let Some(part) = self.part(hash) {
                part.with(|shard| {
                    if shard.find(hash, key).is_none() {
                        shard.update(hash, key, now, |_| (record, expires_at));
                    }
                });
            }
        }
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// A version that grows with every change. If it is unchanged, there are no [changes](Self::take_changes).
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The changes since the last call, for the single owner of a durable copy.
    pub fn take_changes(&self) -> PenaltyChanges {
        let mut changes = PenaltyChanges::default();
        for part in &self.parts {
            part.with(|shard| shard.take_changes(&mut changes));
        }
        changes
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.count.load(Ordering::Acquire)).sum()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of violations that were not recorded for lack of room, since the start.
    pub fn unrecorded(&self) -> u64 {
        self.unrecorded.load(Ordering::Relaxed)
    }

    /// The number of lock-outs that ended early because the table was full of harder ones, since the start.
    pub fn dropped_lock_outs(&self) -> u64 {
        self.parts.iter().map(|part| part.with(|shard| shard.dropped())).sum()
    }

    fn part(&self, hash: u64) -> Option<&ShardLock> {
        // The hash table of a shard uses the other bits.
        self.parts.get((hash >> 32) as usize % SHARDS)
    }

    fn collect(&self, wanted: impl Fn(&PenaltyEntry) -> bool) -> Vec<PenaltyEntry> {
        let mut found = Vec::new();
        for part in self.parts.iter().filter(|part| part.count.load(Ordering::Acquire) > 0) {
            part.with(|shard| found.extend(shard.iter().filter(|entry| wanted(entry)).cloned()));
        }
        found
    }
}

impl ShardLock {
    fn with<R>(&self, act: impl FnOnce(&mut PenaltyShard) -> R) -> R {
        // No panic can leave a shard half changed.
        let mut shard = self.shard.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut shard);
        self.count.store(shard.len(), Ordering::Release);
        result
    }
}

#[cfg(test)]
mod tests;
