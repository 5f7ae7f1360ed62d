//! The in-memory store: counters of this process, within a cap of bytes.
//!
//! A key is a seeded 64-bit hash. Its high bits say which cache line is its home, its low bits stand in the
//! slot, pending_cost a state packed into one word: one line is all that an ordinary check touches. `bucket` is a
//! line, `table` says where keys live. `fast` is the way of almost all decisions: a refusal writes nothing, and
//! what passes replaces the words it has read. `decision` is the way of the rest, with locks held from the start.

#![allow(clippy::cast_possible_truncation, reason = "bits of hashes and tags are cut on purpose")]

mod cache_line;
mod fast_path;
pub(crate) mod hash;
mod heavy_hitters;
mod limit_registry;
mod locked_path;
mod metrics;
mod overrides;
mod pool;
mod prefetch;
mod reclaim;
mod table;

use std::hint::cold_path;
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::{SmallVec, smallvec};
use tidegate_core::{
    AlgorithmKind, Check, CounterKey, Decision, Limit, Refund, Role, Timestamp, decide, peek,
};

use crate::store::{Override, Store, StoreError};
use cache_line::CacheLine;
use fast_path::{DecideOne, is_common};
use hash::KeyHasher;
use heavy_hitters::HeavyHitters;
pub use heavy_hitters::HeavyKey;
pub use limit_registry::RetainedLimits;
use limit_registry::{LimitRegistry, MAX_LIMITS};
use locked_path::{LockError, LockedCounters, ResolvedCheck};
use metrics::StoreMetrics;
use overrides::Overrides;
use pool::Pool;
use table::CounterTable;

/// At this share of its slots a table is as full as it should get: of a million keys about nine then find all
/// of their sixteen lines full.
const FILL: f64 = 0.65;
/// Fewer bytes are not worth saving: with some room to spare, almost every key lives in its home.
const SMALL: usize = 128 * 1024;
/// So many bytes for each slot; a line holds four.
const SLOT_BYTES: usize = size_of::<CacheLine>() / cache_line::SLOTS;
/// One part of so many is for states that do not fit a slot.
const POOL_SHARE: usize = 8;

/// Counters in this process, in a table of fixed size.
///
/// The table is taken at the start and never grows. When keys that still count fill it, newcomers share
/// counters: they are limited too, only together. No key that still counts is ever forgotten for another.
#[derive(Debug)]
pub struct MemoryStore {
    table: CounterTable,
    hasher: KeyHasher,
    overrides: Overrides,
    metrics: StoreMetrics,
    heavy_hitters: HeavyHitters,
}

/// How full a store is, and what that costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of the table, taken at the start.
    pub table_bytes: u64,
    /// Bytes in use for states that do not fit a slot: logs, mostly.
    pub pool_bytes: u64,
    /// Checks judged by a shared counter, since the start.
    pub overflowed: u64,
    /// Different limits that have a number: those of the policy, of overrides, and of counters that were not yet found
    /// to have expired.
    pub limits_in_use: u64,
    /// How many different limits can have a number at once.
    pub limits_max: u64,
}

impl MemoryStore {
    /// A store whose counters take at most `bytes`, and at least a few kilobytes; less than 0.2 MB of books stand
    /// pending_cost them.
    pub fn with_cap(bytes: usize) -> Self {
        let pool = Pool::new((bytes / POOL_SHARE) as u64);
        let lines = (bytes - bytes / POOL_SHARE) / size_of::<CacheLine>();
        Self {
            table: CounterTable::new(lines, pool),
            hasher: KeyHasher::random(),
            overrides: Overrides::default(),
            metrics: StoreMetrics::default(),
            heavy_hitters: HeavyHitters::default(),
        }
    }

    /// The cap that a store for so many live keys needs, and never less than 128 KiB.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a size in bytes need not be exact"
    )]
    pub fn cap_for(keys: usize) -> usize {
        let table = keys as f64 / FILL * SLOT_BYTES as f64;
        SMALL.max((table * POOL_SHARE as f64 / (POOL_SHARE - 1) as f64).ceil() as usize)
    }

    /// How full it is.
    pub fn memory_use(&self) -> MemoryUse {
        MemoryUse {
            table_bytes: (self.table.slots() * SLOT_BYTES) as u64,
            pool_bytes: self.table.pool.used(),
            overflowed: self.metrics.overflows(),
            limits_in_use: self.table.limits.counts().0 as u64,
            limits_max: MAX_LIMITS as u64,
        }
    }

    /// The heaviest keys of each rule, heaviest first, by a sample of all decisions.
    pub fn heaviest(&self) -> Vec<HeavyKey> {
        self.heavy_hitters.heaviest()
    }

    /// What the table needs to know of a check, but for its limit's number, which is only presumed.
    #[expect(clippy::inline_always, reason = "a few instructions of every decision")]
    #[inline(always)]
    fn look_up(&self, check: &Check<'_>) -> KeyLookup {
        let hash = self.hasher.hash(&check.key);
        KeyLookup { hash, home: self.table.home(hash), number: LimitRegistry::presumed_number(check.limit) }
    }

    /// The same for several, whose lines are all asked for before the first is looked at.
    fn look_up_all(&self, checks: &[Check<'_>]) -> KeyLookups {
        let mut lookups = KeyLookups::new();
        for check in checks {
            let lookup = self.look_up(check);
            self.table.prefetch(lookup.home);
            lookups.push(lookup);
        }
        lookups
    }

    /// Puts the numbers that limits have in the place of those that were presumed; whether any was another. A limit
    /// that has none gets one.
    fn number_all(
        &self,
        checks: &[Check<'_>],
        lookups: &mut [KeyLookup],
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut is_another = false;
        for (check, lookup) in checks.iter().zip(lookups) {
            let number = self.table.number(check.limit, now)?;
            is_another |= number != lookup.number;
            lookup.number = number;
        }
        Ok(is_another)
    }

    #[expect(clippy::inline_always, reason = "what a caller does not lookup of a decision is not computed")]
    #[inline(always)]
    fn decide_now(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        // One algorithm is small enough to be part of every caller.
        if let [check] = checks
            && let AlgorithmKind::TokenBucket(algorithm) = check.limit.kind()
            && is_common(check)
            && let Some(spent) = self.spend((check.limit, algorithm), &check.key, self.look_up(check), now)
        {
            let outcome = algorithm.outcome_of_one(spent, now);
            #[expect(
                clippy::if_same_then_else,
                reason = "with one verdict in each, what a caller does not look at is not even put together"
            )]
            return if outcome.verdict.is_pass() {
                Ok(Decision::of_one(now, Role::Binding, outcome))
            } else {
                Ok(Decision::of_one(now, Role::Binding, outcome))
            };
        }
        cold_path();
        self.decide_slow(checks, now)
    }

    #[inline(never)]
    fn decide_slow(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.decide_with(checks, &mut self.look_up_all(checks), now)
    }

    #[inline(never)]
    fn decide_with(
        &self,
        checks: &[Check<'_>],
        lookups: &mut [KeyLookup],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        if let ([check], [lookup]) = (checks, &*lookups) {
            return check.limit.visit(DecideOne { store: self, check, lookup: *lookup, now });
        }
        match self.try_several(checks, lookups, now) {
            Some(decision) => Ok(self.sampled(checks, lookups, decision)),
            None => self.decide_fallback(checks, lookups, now),
        }
    }

    /// What the fast way has no answer for: it is tried again if a number was presumed wrongly.
    #[cold]
    #[inline(never)]
    fn decide_fallback(
        &self,
        checks: &[Check<'_>],
        lookups: &mut [KeyLookup],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        if self.number_all(checks, lookups, now)? {
            self.decide_with(checks, lookups, now)
        } else {
            self.decide_locked(checks, lookups, now)
        }
    }

    #[inline(never)]
    fn decide_into(
        &self,
        checks: &[Check<'_>],
        lookups: &mut [KeyLookup],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        decisions.push(self.decide_with(checks, lookups, now)?);
        Ok(())
    }

    /// All lines are asked for before the first is looked at. On an error, what was decided until then is appended.
    #[inline(never)]
    fn decide_batch_now(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let mut lookups = SmallVec::<[KeyLookup; 16]>::new();
        for checks in batch {
            for check in *checks {
                let lookup = self.look_up(check);
                self.table.prefetch(lookup.home);
                lookups.push(lookup);
            }
        }
        decisions.reserve(batch.len());
        let mut rest = lookups.as_mut_slice();
        for checks in batch {
            let (these, others) = rest.split_at_mut(checks.len());
            rest = others;
            if let ([check], [lookup]) = (checks, &*these)
                && let AlgorithmKind::TokenBucket(algorithm) = check.limit.kind()
                && is_common(check)
                && let Some(spent) = self.spend((check.limit, algorithm), &check.key, *lookup, now)
            {
                decisions.push(Decision::of_one(now, Role::Binding, algorithm.outcome_of_one(spent, now)));
            } else {
                cold_path();
                self.decide_into(checks, these, now, decisions)?;
            }
        }
        Ok(())
    }

    /// Gives back what the first requests of a batch were charged, whose decisions these are.
    #[cold]
    fn undo(&self, batch: &[&[Check<'_>]], decisions: impl Iterator<Item = Decision>, now: Timestamp) {
        let charged = batch.iter().zip(decisions).flat_map(|(checks, decision)| decision.refunds(checks));
        for refund in charged {
            // What cannot be given back stays charged, and the caller learns of the first error.
            let _ = self.refund_one(&refund, now);
        }
    }

    /// With all locks held from the start.
    #[cold]
    #[inline(never)]
    fn decide_locked(
        &self,
        checks: &[Check<'_>],
        lookups: &[KeyLookup],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        let decision = self.with_locks(self.in_force(checks, lookups, now)?, now, |locked| {
            locked.adopt();
            decide(checks, now, locked)
        })?;
        Ok(self.sampled(checks, lookups, decision))
    }

    fn sampled(&self, checks: &[Check<'_>], lookups: &[KeyLookup], decision: Decision) -> Decision {
        for (check, lookup) in checks.iter().zip(lookups) {
            self.heavy_hitters.sample(&check.key, lookup.hash, decision.at, decision.passes());
        }
        decision
    }

    /// The limits in force.
    fn in_force(
        &self,
        checks: &[Check<'_>],
        lookups: &[KeyLookup],
        now: Timestamp,
    ) -> Result<SmallVec<[ResolvedCheck; 4]>, StoreError> {
        let mut resolved = SmallVec::new();
        for (check, KeyLookup { hash, number, .. }) in checks.iter().zip(lookups) {
            resolved.push(match self.overrides.in_force(&check.key, now) {
                Some(limit) => ResolvedCheck { hash: *hash, limit, number: self.table.number(&limit, now)? },
                None => ResolvedCheck { hash: *hash, limit: *check.limit, number: *number },
            });
        }
        Ok(resolved)
    }

    /// Locks what these keys need, and acts.
    fn with_locks<R>(
        &self,
        mut resolved: SmallVec<[ResolvedCheck; 4]>,
        now: Timestamp,
        act: impl FnOnce(&mut LockedCounters<'_>) -> R,
    ) -> Result<R, StoreError> {
        loop {
            let error = match LockedCounters::lock(&self.table, &self.metrics, &resolved, now) {
                Ok(mut locked) => return Ok(act(&mut locked)),
                Err(error) => error,
            };
            match error {
                LockError::Busy => crate::sync::yield_now(),
                LockError::Retired => {
                    for resolved in &mut resolved {
                        resolved.number = self.table.number(&resolved.limit, now)?;
                    }
                }
            }
        }
    }

    fn peek_now(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let mut lookups = self.look_up_all(checks);
        self.number_all(checks, &mut lookups, now)?;
        let resolved = self.in_force(checks, &lookups, now)?;
        self.with_locks(resolved, now, |locked| peek(checks, now, locked))
    }

    /// Gives back only what was charged under the limit that still counts.
    fn refund_one(&self, refund: &Refund<'_>, now: Timestamp) -> Result<(), StoreError> {
        if self.overrides.may_affect(refund, now) {
            return Ok(());
        }
        // No counter counts under a limit that has no number.
        let Some(number) = self.table.limits.find_or_revive(refund.limit) else { return Ok(()) };
        let resolved = ResolvedCheck { hash: self.hasher.hash(&refund.key), limit: *refund.limit, number };
        self.with_locks(smallvec![resolved], now, |locked| {
            if locked.counts_under_its_limit(0) {
                locked.change(0, |limit, state| limit.refund(state, refund.charged, now, refund.cost));
            }
        })
    }

    /// Gives each of `limits` a number that it keeps until the result is dropped, or changes nothing.
    fn retain(&self, limits: &[Limit], now: Timestamp) -> Result<RetainedLimits, StoreError> {
        let retained = self.table.limits.retain(limits).or_else(|_| {
            self.overrides.release_ended(now);
            self.table.reclaim_all(now);
            self.table.limits.retain(limits)
        });
        let (retained, new) = retained?;
        self.table.reclaim_parts(new, now);
        Ok(retained)
    }
}

/// A key's hash and home, and its limit's number.
#[derive(Clone, Copy, Debug)]
struct KeyLookup {
    hash: u64,
    home: usize,
    number: u16,
}

type KeyLookups = SmallVec<[KeyLookup; 4]>;

/// Decides when it is polled, and never waits.
struct DecideFuture<'s, 'c, 'k> {
    store: &'s MemoryStore,
    checks: &'c [Check<'k>],
    now: Timestamp,
}

impl Future for DecideFuture<'_, '_, '_> {
    type Output = Result<Decision, StoreError>;

    #[expect(clippy::inline_always, reason = "snapshot decide_now")]
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(self.store.decide_now(self.checks, self.now))
    }
}

impl Store for MemoryStore {
    #[inline]
    fn decide(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        DecideFuture { store: self, checks, now }
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let first = decisions.len();
        let decided = self.decide_batch_now(batch, now, decisions);
        if decided.is_err() {
            self.undo(batch, decisions.drain(first..), now);
        }
        decided
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.peek_now(checks, now)
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        refunds.iter().try_for_each(|refund| self.refund_one(refund, now))
    }

    async fn reset(&self, key: CounterKey<'_>) -> Result<(), StoreError> {
        self.table.forget(self.hasher.hash(&key));
        Ok(())
    }

    async fn override_limit(
        &self,
        key: CounterKey<'_>,
        replacement: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        match replacement {
            Some(replacement) => {
                let retained = self.retain(&[replacement.limit], now)?;
                self.overrides.set(key, replacement, retained, now);
            }
            None => self.overrides.end(key, now),
        }
        Ok(())
    }

    fn retain_limits(&self, limits: &[Limit], now: Timestamp) -> Result<RetainedLimits, StoreError> {
        self.retain(limits, now)
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
