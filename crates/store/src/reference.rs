//! The simple in-memory store: right first. Faster stores are compared with it, decision by decision.
//!
//! Entries live in shards, each behind its own lock. A decision takes the locks of all its shards in
//! ascending order (so two decisions can never wait for each other), judges, charges, and lets go: that is
//! what makes it all or nothing. Whole keys are kept, so no two clients ever share a counter.
//!
//! Memory follows the live keys: when a shard has doubled since its last sweep, what is as good as never seen
//! is dropped. There is no cap on live keys.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::PoisonError;

use smallvec::SmallVec;
use tidegate_core::{
    Check, Cost, Decision, Key, Ledger, Limit, Outcome, Refund, RuleId, Span, Timestamp, decide, peek,
};

use crate::entry::{Entry, Override};
use crate::store::{Store, StoreError};
use crate::sync::{Mutex, MutexGuard};

/// Enough that two cores rarely meet.
const SHARDS: usize = 64;
/// Below this a sweep is not worth its time.
const SWEEP_AT_LEAST: usize = 64;
/// What is as good as never seen is kept for another minute: time that goes back by less refills nothing.
const GRACE: Span = Span::from_secs(60);

/// Counters in this process, in a sharded map.
#[derive(Debug)]
pub struct ReferenceStore {
    shards: Box<[Mutex<Shard>]>,
}

impl ReferenceStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::with_shards(SHARDS)
    }

    fn with_shards(count: usize) -> Self {
        Self { shards: (0..count).map(|_| Mutex::new(Shard::default())).collect() }
    }

    /// How many keys are remembered.
    pub fn len(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.lock(shard).len).sum()
    }

    /// Whether no key is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard_of(&self, key: Key<'_>) -> usize {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let shards = self.shards.len() as u64;
        usize::try_from(hasher.finish() % shards).unwrap_or_default()
    }

    /// A panic elsewhere leaves a shard as it was between two charges: no reason to stop deciding.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the shards of `keys`, in ascending order.
    fn lock_all<'s>(&'s self, keys: impl Iterator<Item = Key<'s>>) -> Locked<'s> {
        let shards: SmallVec<[usize; 4]> = keys.map(|key| self.shard_of(key)).collect();
        let mut ascending = shards.clone();
        ascending.sort_unstable();
        ascending.dedup();
        let guards = ascending.iter().map(|&shard| (shard, self.lock(shard))).collect();
        Locked { guards, shards }
    }

    fn with_ledger<'s, R>(
        &'s self,
        checks: &'s [Check<'s>],
        now: Timestamp,
        act: impl FnOnce(&mut LockedLedger<'s>) -> R,
    ) -> R {
        let locked = self.lock_all(checks.iter().map(|check| check.key));
        act(&mut LockedLedger { locked, checks, now })
    }

    fn decide_now(&self, checks: &[Check<'_>], now: Timestamp) -> Decision {
        self.with_ledger(checks, now, |ledger| {
            ledger.adopt();
            decide(checks, now, ledger)
        })
    }
}

impl Default for ReferenceStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for ReferenceStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        Ok(self.decide_now(checks, now))
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        decisions.extend(batch.iter().map(|checks| self.decide_now(checks, now)));
        Ok(())
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        Ok(self.with_ledger(checks, now, |ledger| peek(checks, now, ledger)))
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        let mut locked = self.lock_all(refunds.iter().map(|refund| refund.key));
        for (position, refund) in refunds.iter().enumerate() {
            if let Some(entry) = locked.shard_mut(position).find_mut(refund.key) {
                entry.refund(refund, now);
            }
        }
        Ok(())
    }

    async fn reset(&self, key: Key<'_>) -> Result<(), StoreError> {
        if let Some(entry) = self.lock(self.shard_of(key)).find_mut(key) {
            entry.reset();
        }
        Ok(())
    }

    async fn override_limit(
        &self,
        key: Key<'_>,
        instead: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.lock(self.shard_of(key)).find_or_insert(key, now).override_limit(instead, now);
        Ok(())
    }
}

/// Entries by rule and client; every client's bytes are kept whole.
#[derive(Debug, Default)]
struct Shard {
    rules: HashMap<RuleId, HashMap<Box<[u8]>, Entry>>,
    len: usize,
    sweep_at: usize,
}

impl Shard {
    fn find(&self, key: Key<'_>) -> Option<&Entry> {
        self.rules.get(&key.rule)?.get(key.client)
    }

    fn find_mut(&mut self, key: Key<'_>) -> Option<&mut Entry> {
        self.rules.get_mut(&key.rule)?.get_mut(key.client)
    }

    fn find_or_insert(&mut self, key: Key<'_>, now: Timestamp) -> &mut Entry {
        if self.find(key).is_none() {
            self.sweep_if_due(now);
            self.len += 1;
        }
        self.rules.entry(key.rule).or_default().entry(key.client.into()).or_default()
    }

    fn sweep_if_due(&mut self, now: Timestamp) {
        if self.len < self.sweep_at.max(SWEEP_AT_LEAST) {
            return;
        }
        for clients in self.rules.values_mut() {
            clients.retain(|_, entry| !entry.is_fresh(now - GRACE));
        }
        self.rules.retain(|_, clients| !clients.is_empty());
        self.len = self.rules.values().map(HashMap::len).sum();
        self.sweep_at = 2 * self.len;
    }
}

/// Shards held by one decision.
struct Locked<'s> {
    guards: SmallVec<[(usize, MutexGuard<'s, Shard>); 4]>,
    /// The shard of each key that was asked for.
    shards: SmallVec<[usize; 4]>,
}

impl Locked<'_> {
    fn guard(&self, position: usize) -> usize {
        let shard = self.shards[position];
        self.guards.iter().position(|(held, _)| *held == shard).expect("the shard of every key is locked")
    }

    fn shard(&self, position: usize) -> &Shard {
        &self.guards[self.guard(position)].1
    }

    fn shard_mut(&mut self, position: usize) -> &mut Shard {
        let guard = self.guard(position);
        &mut self.guards[guard].1
    }
}

struct LockedLedger<'s> {
    locked: Locked<'s>,
    checks: &'s [Check<'s>],
    now: Timestamp,
}

impl LockedLedger<'_> {
    fn adopt(&mut self) {
        for (position, Check { key, limit, .. }) in self.checks.iter().enumerate() {
            if let Some(entry) = self.locked.shard_mut(position).find_mut(*key) {
                entry.adopt(limit, self.now);
            }
        }
    }
}

impl Ledger for LockedLedger<'_> {
    fn judge(&self, check: usize, cost: Cost) -> Outcome {
        let Check { key, limit, .. } = self.checks[check];
        match self.locked.shard(check).find(key) {
            Some(entry) => entry.judge(limit, self.now, cost),
            None => judge_unseen(limit, self.now, cost),
        }
    }

    fn charge(&mut self, check: usize, cost: Cost) {
        let Check { key, limit, .. } = self.checks[check];
        self.locked.shard_mut(check).find_or_insert(key, self.now).charge(limit, self.now, cost);
    }
}

fn judge_unseen(limit: &Limit, now: Timestamp, cost: Cost) -> Outcome {
    Entry::default().judge(limit, now, cost)
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Spec};

    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn second(requests: u64) -> Limit {
        Limit::new(Algorithm::TokenBucket, Spec::new(requests, Span::from_secs(1))).expect("a valid limit")
    }

    #[test]
    fn idle_keys_are_forgotten_and_live_ones_are_not() {
        let store = ReferenceStore::with_shards(1);
        let (rule, limit) = (RuleId::named("default"), second(1));
        let hour = Limit::new(Algorithm::FixedWindow, Spec::new(1, Span::from_secs(3_600))).unwrap();
        let abuser = Check::new(Key::new(RuleId::named("login"), b"abuser"), &hour);
        assert!(store.decide_now(&[abuser], START).passes());
        for n in 0_u64..10_000 {
            let client = n.to_be_bytes();
            let now = START + Span::from_millis(100 * n);
            store.decide_now(&[Check::new(Key::new(rule, &client), &limit)], now);
            assert!(store.len() <= 2 * 611, "610 live keys and the abuser were {} at step {n}", store.len());
        }
        assert!(!store.decide_now(&[abuser], START + Span::from_secs(1_000)).passes());
    }

    #[test]
    fn a_refused_or_peeked_key_is_not_remembered() {
        let store = ReferenceStore::new();
        let limit = second(1);
        let check = Check::new(Key::new(RuleId::named("default"), b"a"), &limit);
        store.decide_now(&[check.cost(Cost::new(2))], START);
        store.decide_now(&[check.cost(Cost::ZERO)], START);
        pollster::block_on(store.peek(&[check], START)).unwrap();
        assert!(store.is_empty());
    }
}

/// Every interleaving of two decisions, by loom: `cargo xtask loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;
    use tidegate_core::{Algorithm, Spec};

    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);
    const NARROW: RuleId = RuleId::named("narrow");
    const WIDE: RuleId = RuleId::named("wide");

    fn limit(requests: u64) -> Limit {
        Limit::new(Algorithm::FixedWindow, Spec::new(requests, Span::from_secs(60))).expect("a valid limit")
    }

    fn two_shards() -> Arc<ReferenceStore> {
        let store = ReferenceStore::with_shards(2);
        assert_ne!(store.shard_of(Key::new(NARROW, b"")), store.shard_of(Key::new(WIDE, b"")));
        Arc::new(store)
    }

    /// Two threads lock two shards, naming them in opposite order, for one unit that both want.
    fn race_for_one_unit(store: &Arc<ReferenceStore>) -> usize {
        let racers = [[NARROW, WIDE], [WIDE, NARROW]].map(|rules| {
            let store = Arc::clone(store);
            thread::spawn(move || {
                let (narrow, wide) = (limit(1), limit(2));
                let checks = rules.map(|rule| {
                    Check::new(Key::new(rule, b""), if rule == NARROW { &narrow } else { &wide })
                });
                store.decide_now(&checks, START).passes()
            })
        });
        racers
            .map(|racer| racer.join().expect("no racer panics"))
            .into_iter()
            .filter(|passed| *passed)
            .count()
    }

    #[test]
    fn loom_opposite_lock_orders_never_deadlock_and_admit_exactly_one() {
        loom::model(|| {
            let store = two_shards();
            assert_eq!(race_for_one_unit(&store), 1);
            let wide = limit(2);
            let left = store.with_ledger(&[Check::new(Key::new(WIDE, b""), &wide)], START, |ledger| {
                ledger.judge(0, Cost::ZERO).remaining
            });
            assert_eq!(left, 1, "the one refused was charged nowhere");
        });
    }

    /// While one decision over both rules runs, another looks at both: it sees all of it or nothing.
    #[test]
    fn loom_no_decision_is_seen_half_done() {
        loom::model(|| {
            let store = two_shards();
            let decider = {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    let one = limit(1);
                    let both = [NARROW, WIDE].map(|rule| Check::new(Key::new(rule, b""), &one));
                    store.decide_now(&both, START);
                })
            };
            let one = limit(1);
            let both = [WIDE, NARROW].map(|rule| Check::new(Key::new(rule, b""), &one));
            let seen = store.with_ledger(&both, START, |ledger| peek(&both, START, ledger));
            assert_eq!(seen.outcomes[0].remaining, seen.outcomes[1].remaining);
            decider.join().expect("the decider does not panic");
        });
    }
}
