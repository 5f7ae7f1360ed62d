//! Rejections that this node repeats without asking Redis.
//!
//! A rejection holds until its `retry_after`: until then nothing but a refund, a reset, an override or another limit can make
//! the counter admit the same cost. It answers that cost only, because a larger one has a later `retry_after`. The cache keeps the
//! outcomes of all checks of a rejected decision, so that a flood on one key is answered by complete decisions of this node and
//! costs Redis nothing.
//!
//! - The life of an entry counts from the moment the question was *sent*, minus a margin for drift between the clocks, so a
//!   rejection never lasts longer than Redis said. It is asked again after [`LONGEST_LIFE`] in any case, which bounds the
//!   effect of a message that was lost, and after [`LONGEST_LIFE_OF_SEVERAL`] if it is about more than one unit.
//! - An entry is found only by a decision with the same keys, limits and roles, whose rejected check costs the same.
//! - [`forget`](RejectionCache::forget) drops a counter. A reply that was on its way meanwhile is not kept either: a
//!   question takes a [`Generation`] before it is sent, and what was forgotten since then is not inserted.
//! - Without a subscription the cache is suspended: other nodes could not invalidate it.

mod shard;

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use tidegate_core::{Check, Cost, CounterKey, Decision, Outcomes, Role, TimeSpan, Timestamp, Verdict};

use shard::{NameIndex, RejectionShard, StoredRejection};

/// The number of shards of the table.
const SHARDS: usize = 64;
/// The counters in a shard: 65,536 in all.
const SHARD_CAP: usize = 1_024;
/// The number of counters that were forgotten last; replies to older questions are not kept.
const RECENT_CAP: usize = 4_096;
/// A rejection is asked again after this time.
pub(crate) const LONGEST_LIFE: TimeSpan = TimeSpan::from_secs(60);
/// The same for a rejection of more than one unit: requests of a smaller cost may be admitted meanwhile, which changes what
/// remains and when a retry succeeds.
const LONGEST_LIFE_OF_SEVERAL: TimeSpan = TimeSpan::from_secs(1);
/// The part of `retry_after` by which the clocks of the node and of Redis may drift apart.
const DRIFT_DIVISOR: u64 = 1_024;

/// Rejected decisions, by the counter that rejected.
#[derive(Debug)]
pub(crate) struct RejectionCache {
    hashers: [RandomState; 2],
    shards: Box<[RejectionShard]>,
    names: NameIndex,
    /// Counts what was forgotten; equals `recent.generation`.
    generation: AtomicU64,
    is_active: AtomicBool,
    recent: Mutex<RecentChanges>,
    served: AtomicU64,
}

/// The time at which a question was sent, in counts of forgotten counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation(u64);

/// How a rejected decision was obtained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RejectionSource<'a> {
    /// The position of the check that rejected.
    pub(crate) position: usize,
    /// The name of its counter in Redis.
    pub(crate) name: &'a [u8],
    /// The longest life of the entry.
    pub(crate) life: TimeSpan,
    /// When the question was sent, by [`RejectionCache::generation`].
    pub(crate) generation: Generation,
    /// When the question was sent, by the node's clock.
    pub(crate) sent: Timestamp,
    /// When the reply arrived, by the node's clock.
    pub(crate) received: Timestamp,
}

#[derive(Debug, Default)]
struct RecentChanges {
    generation: u64,
    /// Questions of earlier generations are too old to be compared.
    floor: u64,
    /// The generations and the hashes of the names of the counters forgotten last.
    names: VecDeque<(u64, u64)>,
}

impl RejectionCache {
    /// An empty, suspended cache.
    pub(crate) fn new() -> Self {
        Self {
            hashers: [RandomState::default(), RandomState::default()],
            shards: (0..SHARDS).map(|_| RejectionShard::new(SHARD_CAP)).collect(),
            names: NameIndex::new(SHARDS),
            generation: AtomicU64::new(0),
            is_active: AtomicBool::new(false),
            recent: Mutex::default(),
            served: AtomicU64::new(0),
        }
    }

    /// Must be read before a question is sent.
    pub(crate) fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// The rejection of `checks` at `now`, if it is known.
    pub(crate) fn find(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Decision> {
        if !self.is_active.load(Ordering::Acquire) {
            return None;
        }
        for (position, check) in checks.iter().enumerate().filter(|(_, check)| check.role == Role::Binding) {
            let key = self.fingerprint(check.key);
            let Some(shard) = self.shard(key).filter(|shard| !shard.is_empty()) else { continue };
            let signature = || self.signature(checks, position);
            if let Some((at, outcomes)) = shard.find(key, check.cost, now, signature) {
                self.served.fetch_add(1, Ordering::Relaxed);
                return Some(Decision::new(at, checks, outcomes));
            }
        }
        None
    }

    /// Keeps a rejected decision, unless its counter was forgotten since the question was sent.
    pub(crate) fn insert(&self, checks: &[Check<'_>], decision: &Decision, source: RejectionSource<'_>) {
        let (Some(check), Some(outcome)) =
            (checks.get(source.position), decision.outcomes.get(source.position))
        else {
            return;
        };
        // Costs on one key add up, so what another decision costs it cannot be compared with a single check.
        let is_shared = checks.iter().filter(|other| other.key == check.key).count() > 1;
        let span = match outcome.verdict {
            _ if is_shared || check.role != Role::Binding => return,
            Verdict::Pass { .. } => return,
            Verdict::NotUntil { retry_after } => retry_after,
            Verdict::Never => TimeSpan::MAX,
        };
        let drift = TimeSpan::from_micros(span.as_micros().div_ceil(DRIFT_DIVISOR));
        let longest = if check.cost > Cost::ONE { LONGEST_LIFE_OF_SEVERAL } else { LONGEST_LIFE };
        let until = (source.sent + span - drift).min(source.sent + source.life.min(longest));
        if until <= source.received {
            return;
        }
        let name = self.name_hash(source.name);
        let key = self.fingerprint(check.key);
        let rejection = StoredRejection {
            signature: self.signature(checks, source.position),
            position: source.position,
            cost: check.cost,
            until,
            received: source.received,
            at: decision.at,
            outcomes: Outcomes::from_slice(&decision.outcomes),
        };
        // The lock is kept until the entry is visible to `forget`.
        let recent = self.lock_recent();
        if !self.is_active.load(Ordering::Acquire) || recent.has_changed(name, source.generation) {
            return;
        }
        if let Some(shard) = self.shard(key) {
            self.names.insert(name, key);
            for evicted in shard.insert(key, name, rejection, source.received) {
                self.names.remove(evicted);
            }
        }
        drop(recent);
    }

    /// Drops the rejections of the counter with this name in Redis.
    pub(crate) fn forget(&self, name: &[u8]) {
        let name = self.name_hash(name);
        self.lock_recent().push(name, &self.generation);
        if let Some(key) = self.names.remove(name)
            && let Some(shard) = self.shard(key)
        {
            shard.remove(key);
        }
    }

    /// Drops everything; replies to questions that were sent earlier are not kept.
    pub(crate) fn clear(&self) {
        let mut recent = self.lock_recent();
        recent.restart(&self.generation);
        self.shards.iter().for_each(RejectionShard::clear);
        self.names.clear();
    }

    /// Drops everything, and keeps nothing until [`resume`](Self::resume).
    pub(crate) fn suspend(&self) {
        self.is_active.store(false, Ordering::Release);
        self.clear();
    }

    /// Keeps rejections from now on: every change on another node is reported.
    pub(crate) fn resume(&self) {
        self.clear();
        self.is_active.store(true, Ordering::Release);
    }

    /// Rejections that were served without asking Redis.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Counters with a known rejection.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(RejectionShard::len).sum()
    }

    /// 128 bits identify a counter: with 65,536 entries a collision has a probability below 10^-28.
    fn fingerprint(&self, key: CounterKey<'_>) -> u128 {
        let [high, low] = self.hashers.each_ref().map(|hasher| hasher.hash_one(key));
        (u128::from(high) << 64) | u128::from(low)
    }

    /// Identifies the checks of a decision, except for the cost of the one that rejected.
    fn signature(&self, checks: &[Check<'_>], rejected: usize) -> u64 {
        let [hasher, _] = &self.hashers;
        checks.iter().enumerate().fold(0, |signature, (position, check)| {
            let cost = if position == rejected { None } else { Some(check.cost) };
            hasher.hash_one((signature, check.key, check.limit.fingerprint(), check.role, cost))
        })
    }

    fn name_hash(&self, name: &[u8]) -> u64 {
        let [hasher, _] = &self.hashers;
        hasher.hash_one(name)
    }

    fn shard(&self, key: u128) -> Option<&RejectionShard> {
        self.shards.get(usize::try_from(key % SHARDS as u128).unwrap_or_default())
    }

    fn lock_recent(&self) -> MutexGuard<'_, RecentChanges> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecentChanges {
    fn push(&mut self, name: u64, published: &AtomicU64) {
        self.generation += 1;
        published.store(self.generation, Ordering::Release);
        if self.names.len() == RECENT_CAP
            && let Some((generation, _)) = self.names.pop_front()
        {
            self.floor = generation;
        }
        self.names.push_back((self.generation, name));
    }

    fn restart(&mut self, published: &AtomicU64) {
        self.generation += 1;
        published.store(self.generation, Ordering::Release);
        self.floor = self.generation;
        self.names.clear();
    }

    /// Whether the counter may have changed after `asked`.
    fn has_changed(&self, name: u64, asked: Generation) -> bool {
        let after = |&&(generation, _): &&(u64, u64)| generation > asked.0;
        asked.0 < self.floor
            || self.names.iter().rev().take_while(after).any(|(_, forgotten)| *forgotten == name)
    }
}

#[cfg(test)]
mod tests;
