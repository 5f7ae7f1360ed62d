//! Who is locked out, and who is about to be.
//!
//! A bounded table pending_cost the counters: a record for each client that has violated a rule with a penalty, until it is
//! expires_at. The arithmetic is [`Penalty`]'s. Asking costs one load while a part of the table is empty, and a short lock
//! otherwise. When the table is full, whoever has been expires_at gives way, then whoever has done least; nobody who is
//! locked out ever does. Newcomers that find no room are not remembered: their limits still hold.

mod shard;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tidegate_core::{CounterKey, Penalty, PenaltyState, RuleId, TimeSpan, Timestamp};

use crate::memory::hash::KeyHasher;
use shard::Shard;

/// Parts that are locked on their own.
const SHARDS: usize = 64;
/// Records kept where nothing else is said.
const DEFAULT_CAP: usize = 65_536;
/// What the names of clients may take on average; a few are longer.
const CLIENT_BYTES: usize = 128;
/// A longer name is not remembered: one client is not to take the room of hundreds.
const LONGEST_CLIENT: usize = 4 << 10;

/// Lock-outs and violations, within a cap.
#[derive(Debug)]
pub struct Penalties {
    hasher: KeyHasher,
    parts: Box<[ShardLock]>,
    /// Counts changes.
    version: AtomicU64,
    /// Violations that found no room.
    unrecorded: AtomicU64,
}

#[derive(Debug)]
struct ShardLock {
    /// How many records there are: none, mostly, and then there is nothing to lock.
    count: AtomicUsize,
    shard: Mutex<Shard>,
}

/// A client under a rule. It may be an API key, so it is not shown.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PenaltyKey {
    /// The rule.
    pub rule: RuleId,
    /// The client, as its counter's key has it.
    pub client: Box<[u8]>,
}

impl PenaltyKey {
    /// A key that is kept.
    pub fn of(key: CounterKey<'_>) -> Self {
        Self { rule: key.rule, client: key.client.into() }
    }

    /// The key of the client's counter.
    pub fn as_key(&self) -> CounterKey<'_> {
        CounterKey::new(self.rule, &self.client)
    }

    fn is(&self, key: CounterKey<'_>) -> bool {
        self.as_key() == key
    }
}

impl fmt::Debug for PenaltyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_key().fmt(f)
    }
}

/// What is remembered of one client under one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PenaltyEntry {
    /// Who.
    pub key: PenaltyKey,
    /// What is remembered.
    pub record: PenaltyState,
    /// From when on it is as good as never seen.
    pub expires_at: Timestamp,
}

/// What has changed since it was last asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PenaltyChanges {
    /// Records that are new or different.
    pub set: Vec<PenaltyEntry>,
    /// Records that are gone: expires_at, removed by hand, or given way to others.
    pub removed: Vec<PenaltyKey>,
    /// Too many went for all to be listed: whoever keeps a copy replaces it by a [`snapshot`](Penalties::snapshot).
    pub is_partial: bool,
}

impl PenaltyChanges {}

impl Default for Penalties {
    fn default() -> Self {
        Self::with_cap(DEFAULT_CAP)
    }
}

impl Penalties {
    /// A table of at most `records`, rounded up to a multiple of 64; each takes about 250 bytes at most, on average.
    pub fn with_cap(records: usize) -> Self {
        let each = records.div_ceil(SHARDS).max(1);
        let part = |_| ShardLock {
            count: AtomicUsize::new(0),
            shard: Mutex::new(Shard::new(each, each.saturating_mul(CLIENT_BYTES).max(LONGEST_CLIENT))),
        };
        Self {
            hasher: KeyHasher::random(),
            parts: (0..SHARDS).map(part).collect(),
            version: AtomicU64::new(0),
            unrecorded: AtomicU64::new(0),
        }
    }

    /// How long `key` is still locked out; `None` if it is not.
    #[inline]
    pub fn lock_out(&self, key: CounterKey<'_>, now: Timestamp) -> Option<TimeSpan> {
        let hash = self.hasher.hash(&key);
        let part = self.part(hash)?;
        if part.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        part.with(|shard| shard.find(hash, key).and_then(|found| found.record.lock_out(now)))
    }

    /// Records that `key` has violated a rule with this `penalty`; says how long it is locked out now, if it is.
    pub fn record_violation(
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

    /// Forgets `key` by hand; says whether it was remembered.
    pub fn remove(&self, key: CounterKey<'_>) -> bool {
        let hash = self.hasher.hash(&key);
        let removed = self.part(hash).is_some_and(|part| part.with(|shard| shard.remove(hash, key)));
        if removed {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        removed
    }

    /// Everybody who is locked out, the longest first.
    pub fn locked_out(&self, now: Timestamp) -> Vec<PenaltyEntry> {
        let mut locked = self.collect(|entry| entry.record.lock_out(now).is_some());
        locked.sort_by_key(|entry| std::cmp::Reverse(entry.record.locked_until));
        locked
    }

    /// Everything that is remembered at `now`, in no order.
    pub fn snapshot(&self, now: Timestamp) -> Vec<PenaltyEntry> {
        self.collect(|entry| entry.expires_at > now)
    }

    /// Remembers what a [`snapshot`](Self::snapshot) has held, perhaps before a restart and by another clock. What is
    /// already here stays.
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

    /// A number that grows with every change: if it stands, there is nothing to [take](Self::take_changes).
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// What has changed since this was last asked, for one keeper of a durable copy.
    pub fn take_changes(&self) -> PenaltyChanges {
        let mut changes = PenaltyChanges::default();
        for part in &self.parts {
            part.with(|shard| shard.take_changes(&mut changes));
        }
        changes
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.count.load(Ordering::Acquire)).sum()
    }

    /// Whether nobody is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many violations could not be recorded, because there was no room for them, since the start.
    pub fn unrecorded(&self) -> u64 {
        self.unrecorded.load(Ordering::Relaxed)
    }

    fn part(&self, hash: u64) -> Option<&ShardLock> {
        // The table within a part uses the other bits.
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
    fn with<R>(&self, act: impl FnOnce(&mut Shard) -> R) -> R {
        // Nothing in there panics half-way through a change.
        let mut shard = self.shard.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut shard);
        self.count.store(shard.len(), Ordering::Release);
        result
    }
}

#[cfg(test)]
mod tests;
