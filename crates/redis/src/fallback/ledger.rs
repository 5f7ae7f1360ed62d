//! What this node admitted while Redis failed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::{Algorithm, AsKey, Cost, CounterKey, CounterState, Limit, OwnedKey, Refund, Timestamp};

use super::FallbackCharge;

const SHARDS: usize = 16;
/// Counters beyond this are not remembered.
pub(super) const MAX_COUNTERS: usize = 100_000;
/// The logs of sliding logs beyond this many bytes are not remembered.
const MAX_HEAP_BYTES: usize = 32 << 20;

/// The units admitted per counter, within a cap. All times are the server's: its windows count.
///
/// Windows are counted under the whole limit, so that units of windows that are over can be told apart. Buckets and logs are
/// counted under the node's part: all nodes together then forget units no faster than the whole limit would.
#[derive(Debug)]
pub(super) struct FallbackLedger {
    hasher: RandomState,
    shards: Box<[Mutex<LedgerShard>]>,
    /// Units that were admitted but not remembered.
    unrecorded: AtomicU64,
}

#[derive(Debug, Default)]
struct LedgerShard {
    counters: HashMap<OwnedKey, FallbackCounter>,
    heap_bytes: usize,
}

/// What was admitted for one counter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FallbackCounter {
    pub(super) whole: Limit,
    /// The limit under which `state` is counted.
    basis: Limit,
    state: CounterState,
    pub(super) last: Timestamp,
}

impl Default for FallbackLedger {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            unrecorded: AtomicU64::new(0),
        }
    }
}

impl FallbackLedger {
    /// Remembers an admitted charge under `whole`, of which the node enforces `part`.
    pub(super) fn charge(
        &self,
        key: CounterKey<'_>,
        whole: &Limit,
        part: &Limit,
        now: Timestamp,
        cost: Cost,
    ) {
        let basis = match whole.algorithm() {
            Algorithm::FixedWindow | Algorithm::SlidingCounter => whole,
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::SlidingLog => part,
        };
        let mut shard = self.lock(key);
        let is_full =
            shard.counters.len() >= MAX_COUNTERS / SHARDS || shard.heap_bytes >= MAX_HEAP_BYTES / SHARDS;
        if is_full && !shard.counters.contains_key(&key as &dyn AsKey) {
            self.unrecorded.fetch_add(cost.get(), Ordering::Relaxed);
            return;
        }
        let counter = shard.counters.entry(key.into()).or_insert_with(|| FallbackCounter {
            whole: *whole,
            basis: *basis,
            state: CounterState::default(),
            last: now,
        });
        let bytes_before = counter.state.heap_bytes();
        counter.adopt(whole, basis, now);
        counter.basis.charge(&mut counter.state, now, cost);
        counter.last = counter.last.max(now);
        let bytes = counter.state.heap_bytes();
        shard.heap_bytes = (shard.heap_bytes + bytes).saturating_sub(bytes_before);
    }

    /// Whether the units of a refund were admitted here. The caller may not know when: a time after the last charge means
    /// any units that still count.
    pub(super) fn has_charged(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        let shard = self.lock(refund.key);
        let counter =
            shard.counters.get(&refund.key as &dyn AsKey).filter(|counter| counter.whole == *refund.limit);
        counter
            .is_some_and(|counter| refund.charged <= counter.last || counter.units(now) >= refund.cost.get())
    }

    /// Forgets a charge that was refunded.
    pub(super) fn refund(&self, refund: &Refund<'_>, now: Timestamp) {
        let LedgerShard { counters, heap_bytes } = &mut *self.lock(refund.key);
        if let Some(counter) = counters.get_mut(&refund.key as &dyn AsKey)
            && counter.whole == *refund.limit
        {
            let bytes_before = counter.state.heap_bytes();
            counter.basis.refund(&mut counter.state, refund.charged, now, refund.cost);
            *heap_bytes = (*heap_bytes + counter.state.heap_bytes()).saturating_sub(bytes_before);
        }
    }

    /// Forgets the counter of `key`.
    pub(super) fn remove(&self, key: CounterKey<'_>) {
        let LedgerShard { counters, heap_bytes } = &mut *self.lock(key);
        if let Some(removed) = counters.remove(&key as &dyn AsKey) {
            *heap_bytes = heap_bytes.saturating_sub(removed.state.heap_bytes());
        }
    }

    /// Forgets the counters for which `is_gone` holds.
    pub(super) fn remove_where(&self, is_gone: impl Fn(CounterKey<'_>) -> bool) {
        for shard in &self.shards {
            let LedgerShard { counters, heap_bytes } = &mut *lock(shard);
            counters.retain(|key, counter| {
                let is_kept = !is_gone(key.as_key());
                if !is_kept {
                    *heap_bytes = heap_bytes.saturating_sub(counter.state.heap_bytes());
                }
                is_kept
            });
        }
    }

    /// Removes up to `most` counters, and returns those of which units still count at `now`. Empty only if no counter is left.
    pub(super) fn take(&self, most: usize, now: Timestamp) -> Vec<FallbackCharge> {
        let mut charges = Vec::new();
        for shard in &self.shards {
            let LedgerShard { counters, heap_bytes } = &mut *lock(shard);
            while charges.len() < most && !counters.is_empty() {
                let keys: Vec<OwnedKey> = counters.keys().take(most - charges.len()).cloned().collect();
                for (key, counter) in keys.iter().filter_map(|key| counters.remove_entry(key)) {
                    *heap_bytes = heap_bytes.saturating_sub(counter.state.heap_bytes());
                    let units = counter.units(now);
                    if units > 0 {
                        charges.push(FallbackCharge { key, cost: Cost::new(units), counter });
                    }
                }
            }
        }
        charges
    }

    /// Puts a counter back that could not be charged. What still counts is asked again when it is taken next.
    pub(super) fn put_back(&self, charge: FallbackCharge) {
        let FallbackCharge { key, counter: mut older, .. } = charge;
        let mut shard = self.lock(key.as_key());
        if let Some(newer) = shard.counters.remove(&key) {
            shard.heap_bytes = shard.heap_bytes.saturating_sub(newer.state.heap_bytes());
            let units = newer.units(newer.last);
            older.adopt(&newer.whole, &newer.basis, newer.last);
            older.basis.charge(&mut older.state, newer.last, Cost::new(units));
            older.last = older.last.max(newer.last);
        }
        shard.heap_bytes += older.state.heap_bytes();
        shard.counters.insert(key, older);
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).counters.len()).sum()
    }

    pub(super) fn unrecorded(&self) -> u64 {
        self.unrecorded.load(Ordering::Relaxed)
    }

    fn lock(&self, key: CounterKey<'_>) -> MutexGuard<'_, LedgerShard> {
        let index = self.hasher.hash_one(key) % SHARDS as u64;
        let shard = usize::try_from(index).ok().and_then(|index| self.shards.get(index));
        lock(shard.unwrap_or(&self.shards[0]))
    }
}

impl FallbackCounter {
    /// The units that still count at `now`.
    fn units(&self, now: Timestamp) -> u64 {
        self.basis.used(&self.state, now)
    }

    /// Converts the counter if its limit or its part has changed.
    fn adopt(&mut self, whole: &Limit, basis: &Limit, now: Timestamp) {
        self.whole = *whole;
        if self.basis != *basis {
            self.state = basis.rebase(&self.basis, std::mem::take(&mut self.state), now);
            self.basis = *basis;
        }
    }
}

fn lock(shard: &Mutex<LedgerShard>) -> MutexGuard<'_, LedgerShard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tidegate_core::{RuleId, Spec, TimeSpan};

    use super::*;

    #[test]
    fn ledger_counts_the_bytes_of_logs_that_it_keeps() {
        let limit = Limit::new(Algorithm::SlidingLog, Spec::new(100, TimeSpan::from_secs(60))).unwrap();
        let key = CounterKey::new(RuleId::named("default"), b"client");
        let now = Timestamp::from_secs(1_700_000_000);
        let ledger = FallbackLedger::default();
        let bytes = || ledger.shards.iter().map(|shard| lock(shard).heap_bytes).sum::<usize>();
        let kept = || {
            let states = ledger.shards.iter().map(|shard| {
                lock(shard).counters.values().map(|counter| counter.state.heap_bytes()).sum::<usize>()
            });
            states.sum::<usize>()
        };
        let times = (0..50).map(|second| now + TimeSpan::from_millis(second));
        for forget in ["remove", "remove_where", "take"] {
            for at in times.clone() {
                ledger.charge(key, &limit, &limit, at, Cost::ONE);
            }
            assert!(bytes() > 0 && bytes() == kept(), "{forget}");
            for charged in times.clone() {
                ledger.refund(&Refund { key, limit: &limit, cost: Cost::ONE, charged }, now);
            }
            assert_eq!(bytes(), kept(), "after refunds");
            match forget {
                "remove" => ledger.remove(key),
                "remove_where" => ledger.remove_where(|_| true),
                _ => drop(ledger.take(1, now)),
            }
            assert_eq!((ledger.len(), bytes()), (0, 0), "{forget}");
        }
    }
}
