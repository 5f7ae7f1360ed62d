//! A shard of the table of rejections, and the index of counters by name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use tidegate_core::{Cost, Outcome, Outcomes, TimeSpan, Timestamp, Verdict};

/// Decisions over different checks or costs that one counter may reject: more replace the one that ends first.
const DECISIONS_PER_COUNTER: usize = 4;
/// A full shard searches all its counters for expired ones at most this often.
const SWEEP_INTERVAL: TimeSpan = TimeSpan::from_secs(1);
/// Otherwise it compares this many counters, and evicts the one that ends first.
const EVICTION_CANDIDATES: usize = 16;

/// A rejected decision.
#[derive(Clone, Debug)]
pub(super) struct StoredRejection {
    /// Identifies the checks.
    pub(super) signature: u64,
    /// The position of the check that rejected.
    pub(super) position: usize,
    /// Its cost: a smaller one might be admitted, and a larger one is rejected for longer.
    pub(super) cost: Cost,
    /// When Redis must be asked again, by the node's clock.
    pub(super) until: Timestamp,
    /// When the reply arrived, by the node's clock.
    pub(super) received: Timestamp,
    /// The time of the decision, by the clock of Redis.
    pub(super) at: Timestamp,
    /// The outcomes of all checks.
    pub(super) outcomes: Outcomes,
}

impl StoredRejection {
    /// Whether `cost` has the same outcome: only the same cost has, and what can never fit stays so for any larger cost.
    fn holds_for(&self, cost: Cost) -> bool {
        let is_never =
            self.outcomes.get(self.position).is_some_and(|outcome| outcome.verdict == Verdict::Never);
        cost == self.cost || is_never && cost > self.cost
    }

    /// The decision as it would be now.
    fn outcomes_at(&self, now: Timestamp) -> (Timestamp, Outcomes) {
        let elapsed = now.since(self.received);
        (self.at + elapsed, self.outcomes.iter().map(|outcome| aged(*outcome, elapsed)).collect())
    }
}

/// The outcome after `elapsed`, if nothing was charged meanwhile.
fn aged(outcome: Outcome, elapsed: TimeSpan) -> Outcome {
    let rest = |span: TimeSpan| TimeSpan::from_micros(span.as_micros().saturating_sub(elapsed.as_micros()));
    let reset_after = rest(outcome.reset_after);
    let verdict = match outcome.verdict {
        Verdict::NotUntil { retry_after } if rest(retry_after).is_zero() => Verdict::PASS,
        Verdict::NotUntil { retry_after } => Verdict::NotUntil { retry_after: rest(retry_after) },
        verdict => verdict,
    };
    let remaining = if reset_after.is_zero() { outcome.limit } else { outcome.remaining };
    Outcome::new(verdict, outcome.limit, remaining, reset_after)
}

/// What one counter rejects.
#[derive(Debug)]
struct CounterRejections {
    name: u64,
    decisions: SmallVec<[StoredRejection; 1]>,
}

impl CounterRejections {
    fn until(&self) -> Timestamp {
        self.decisions.iter().map(|decision| decision.until).max().unwrap_or(Timestamp::ZERO)
    }
}

/// A part of the table, with a lock of its own.
#[derive(Debug)]
pub(super) struct RejectionShard {
    /// The number of counters: usually 0, and then there is nothing to lock.
    count: AtomicUsize,
    cap: usize,
    counters: Mutex<CounterMap>,
}

#[derive(Debug, Default)]
struct CounterMap {
    entries: HashMap<u128, CounterRejections, FixedState>,
    /// When expired counters were removed last.
    swept: Timestamp,
}

impl CounterMap {
    /// Makes room for one counter: removes the expired ones, or if that was done a moment ago, one of the next to end.
    /// Returns the names of the removed counters.
    fn make_room(&mut self, now: Timestamp) -> Vec<u64> {
        let mut removed = Vec::new();
        if now.since(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.entries.retain(|_, counter| {
                let is_live = now < counter.until();
                if !is_live {
                    removed.push(counter.name);
                }
                is_live
            });
        }
        if removed.is_empty() {
            let candidates = self.entries.iter().take(EVICTION_CANDIDATES);
            let first = candidates.min_by_key(|(_, counter)| counter.until()).map(|(key, _)| *key);
            let first = first.and_then(|key| self.entries.remove(&key));
            removed.extend(first.map(|counter| counter.name));
        }
        removed
    }
}

impl RejectionShard {
    pub(super) fn new(cap: usize) -> Self {
        Self { count: AtomicUsize::new(0), cap, counters: Mutex::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The rejection of a decision whose check on `key` costs `cost`.
    pub(super) fn find(
        &self,
        key: u128,
        cost: Cost,
        now: Timestamp,
        signature: impl Fn() -> u64,
    ) -> Option<(Timestamp, Outcomes)> {
        let counters = self.lock();
        let counter = counters.entries.get(&key)?;
        let signature = signature();
        let is_found = |decision: &&StoredRejection| {
            decision.signature == signature && now < decision.until && decision.holds_for(cost)
        };
        counter.decisions.iter().find(is_found).map(|decision| decision.outcomes_at(now))
    }

    /// Adds a rejection. Returns the names of the counters that were removed for it.
    pub(super) fn insert(
        &self,
        key: u128,
        name: u64,
        rejection: StoredRejection,
        now: Timestamp,
    ) -> Vec<u64> {
        let mut counters = self.lock();
        let mut evicted = Vec::new();
        if counters.entries.len() >= self.cap && !counters.entries.contains_key(&key) {
            evicted = counters.make_room(now);
        }
        let counter = counters
            .entries
            .entry(key)
            .or_insert_with(|| CounterRejections { name, decisions: SmallVec::new() });
        let is_same =
            |known: &StoredRejection| known.signature == rejection.signature && known.cost == rejection.cost;
        counter.decisions.retain(|known| !is_same(known) && now < known.until);
        if counter.decisions.len() >= DECISIONS_PER_COUNTER {
            let first = counter.decisions.iter().enumerate().min_by_key(|(_, known)| known.until);
            if let Some((position, _)) = first {
                counter.decisions.swap_remove(position);
            }
        }
        counter.decisions.push(rejection);
        self.count.store(counters.entries.len(), Ordering::Release);
        evicted
    }

    pub(super) fn remove(&self, key: u128) {
        let mut counters = self.lock();
        counters.entries.remove(&key);
        self.count.store(counters.entries.len(), Ordering::Release);
    }

    pub(super) fn clear(&self) {
        let mut counters = self.lock();
        counters.entries.clear();
        self.count.store(0, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, CounterMap> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keys of counters by the hashes of their names.
#[derive(Debug)]
pub(super) struct NameIndex(Box<[Mutex<HashMap<u64, u128, FixedState>>]>);

impl NameIndex {
    pub(super) fn new(shards: usize) -> Self {
        Self((0..shards.max(1)).map(|_| Mutex::default()).collect())
    }

    pub(super) fn insert(&self, name: u64, key: u128) {
        if let Some(mut names) = self.lock(name) {
            names.insert(name, key);
        }
    }

    pub(super) fn remove(&self, name: u64) -> Option<u128> {
        self.lock(name)?.remove(&name)
    }

    pub(super) fn clear(&self) {
        for names in &self.0 {
            names.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    fn lock(&self, name: u64) -> Option<MutexGuard<'_, HashMap<u64, u128, FixedState>>> {
        let names = self.0.get(usize::try_from(name % self.0.len() as u64).unwrap_or_default())?;
        Some(names.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
