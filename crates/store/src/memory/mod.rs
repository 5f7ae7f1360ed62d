//! The in-memory store: counters of this process, within a memory cap.
//!
//! A key is identified by a seeded 64-bit hash. The high bits select its home cache line, the low bits are stored in the
//! slot, next to a state packed into one word: an ordinary check touches one cache line. `cache_line` is a line, `table`
//! places keys. `fast_path` handles almost all decisions: a rejection writes nothing, and an admission replaces the words
//! it has read. `locked_path` handles the rest under locks.

#![allow(clippy::cast_possible_truncation, reason = "bits of hashes and tags are truncated on purpose")]

mod cache_line;
mod carried;
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

use std::cell::Cell;
use std::hint::cold_path;
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::{SmallVec, smallvec};
use tidegate_core::{
    AlgorithmKind, Check, CounterKey, Decision, Limit, Refund, Role, Timestamp, TokenBucket, UnitCharge,
    decide, peek,
};

use crate::store::{Override, Store, StoreError};
use cache_line::CacheLine;
use fast_path::{DecideOne, is_common};
use hash::KeyHasher;
use heavy_hitters::HeavyHitters;
pub use heavy_hitters::HeavyKey;
pub use limit_registry::RetainedLimits;
use limit_registry::{CARRIED, LimitRegistry, MAX_LIMITS};
use locked_path::{LockError, LockedCounters, ResolvedCheck};
use metrics::StoreMetrics;
use overrides::Overrides;
use pool::Pool;
use table::CounterTable;

/// The share of used slots at which a table counts as full: about nine of a million keys then find all of their sixteen
/// lines full.
const FILL: f64 = 0.65;
/// Smaller tables are not worth the savings: with some spare room almost every key lives in its home line.
const SMALL: usize = 128 * 1024;
/// Bytes per slot; a line has four slots.
const SLOT_BYTES: usize = size_of::<CacheLine>() / cache_line::SLOTS;
/// One part in this many of the cap is for states that do not fit a slot.
const POOL_SHARE: usize = 8;

/// Counters in this process, in a table of fixed size.
///
/// The table is allocated at the start and never grows. When live keys fill it, new keys share counters: they are limited
/// too, but together. A live key is never evicted for another.
#[derive(Debug)]
pub struct MemoryStore {
    table: CounterTable,
    hasher: KeyHasher,
    overrides: Overrides,
    metrics: StoreMetrics,
    heavy_hitters: HeavyHitters,
}

/// How full a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of the table, allocated at the start.
    pub table_bytes: u64,
    /// Bytes in use for states that do not fit a slot: logs, mostly.
    pub pool_bytes: u64,
    /// Checks decided by a shared counter, since the start.
    pub overflowed: u64,
    /// Distinct limits with a number: those of the policy, of overrides, and of counters not yet found to have expired.
    pub limits_in_use: u64,
    /// How many distinct limits can have a number at once.
    pub limits_max: u64,
    /// Counters that have their limit beside them, because it has no number.
    pub carried_limits: u64,
}

impl MemoryStore {
    /// A store whose counters take at most `bytes`, and at least a few kilobytes. Bookkeeping takes less than 0.2 MB more.
    pub fn with_cap(bytes: usize) -> Self {
        Self::with_limits(bytes, LimitRegistry::new())
    }

    fn with_limits(bytes: usize, limits: LimitRegistry) -> Self {
        let pool = Pool::new((bytes / POOL_SHARE) as u64);
        let lines = (bytes - bytes / POOL_SHARE) / size_of::<CacheLine>();
        Self {
            table: CounterTable::new(lines, limits, pool),
            hasher: KeyHasher::random(),
            overrides: Overrides::default(),
            metrics: StoreMetrics::default(),
            heavy_hitters: HeavyHitters::default(),
        }
    }

    /// The cap for a store of `keys` live keys, at least 128 KiB.
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

    /// How full the store is.
    pub fn memory_use(&self) -> MemoryUse {
        MemoryUse {
            table_bytes: (self.table.slots() * SLOT_BYTES) as u64,
            pool_bytes: self.table.pool.used(),
            overflowed: self.metrics.overflows(),
            limits_in_use: self.table.limits.in_use() as u64,
            limits_max: MAX_LIMITS as u64,
            carried_limits: self.table.pool.carried_counters(),
        }
    }

    /// The heaviest keys of each rule, heaviest first, by a sample of all decisions.
    pub fn heaviest(&self) -> Vec<HeavyKey> {
        self.heavy_hitters.heaviest()
    }

    /// Computes a check's hash, home and presumed limit number.
    #[expect(clippy::inline_always, reason = "a few instructions of every decision")]
    #[inline(always)]
    fn look_up(&self, check: &Check<'_>) -> KeyLookup {
        let hash = self.hasher.hash(&check.key);
        KeyLookup { hash, home: self.table.home(hash), number: LimitRegistry::presumed_number(check.limit) }
    }

    /// Looks up several checks, and prefetches all lines before the first is read.
    fn look_up_all(&self, checks: &[Check<'_>]) -> KeyLookups {
        let mut lookups = KeyLookups::new();
        for check in checks {
            let lookup = self.look_up(check);
            self.table.prefetch(lookup.home);
            lookups.push(lookup);
        }
        lookups
    }

    /// Replaces presumed limit numbers by the actual ones, and assigns missing numbers. Returns whether any was different, and
    /// the fast path is worth another attempt.
    fn number_all(&self, checks: &[Check<'_>], lookups: &mut [KeyLookup], now: Timestamp) -> bool {
        let (mut is_another, mut is_carried) = (false, false);
        for (check, lookup) in checks.iter().zip(lookups) {
            let number = self.table.number(check.limit, now);
            is_another |= number != lookup.number;
            // The state is in the pool.
            is_carried |= number == CARRIED;
            lookup.number = number;
        }
        is_another && !is_carried
    }

    /// Charges a common check to a token bucket: this algorithm is small enough to be inlined into every caller.
    #[expect(clippy::inline_always, reason = "on the path of almost every decision")]
    #[inline(always)]
    fn spend_common<'c>(&self, check: &Check<'c>, now: Timestamp) -> Option<(&'c TokenBucket, UnitCharge)> {
        let AlgorithmKind::TokenBucket(algorithm) = check.limit.kind() else { return None };
        if !is_common(check) {
            return None;
        }
        let spent = self.spend(check.limit, algorithm, &check.key, self.look_up(check), now)?;
        Some((algorithm, spent))
    }

    #[expect(clippy::inline_always, reason = "fields that the caller does not read are not computed")]
    #[inline(always)]
    fn decide_now(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let [check] = checks else { return self.decide_slow(checks, now) };
        if let Some((algorithm, spent)) = self.spend_common(check, now) {
            let outcome = algorithm.outcome_of_one(spent, now);
            #[expect(
                clippy::if_same_then_else,
                reason = "with one verdict per branch, the compiler omits the fields that the caller does not read"
            )]
            return if outcome.verdict.is_pass() {
                Ok(Decision::of_one(now, Role::Binding, outcome))
            } else {
                Ok(Decision::of_one(now, Role::Binding, outcome))
            };
        }
        cold_path();
        // A copy, so that the check of any other decision need not be in memory.
        self.decide_slow(&[*check], now)
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

    /// Handles decisions without a fast-path result. Retries the fast path if a presumed number was wrong.
    #[cold]
    #[inline(never)]
    fn decide_fallback(
        &self,
        checks: &[Check<'_>],
        lookups: &mut [KeyLookup],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        if self.number_all(checks, lookups, now) {
            self.decide_with(checks, lookups, now)
        } else {
            Ok(self.decide_locked(checks, lookups, now))
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

    fn decide_batch_now(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let first = decisions.len();
        let decided = self.decide_in_order(batch, now, decisions);
        if decided.is_err() {
            self.undo(batch, decisions.drain(first..), now);
        }
        decided
    }

    /// Prefetches all lines before the first is read. On an error, the decisions made until then are appended.
    #[inline(never)]
    fn decide_in_order(
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
                && let Some(spent) = self.spend(check.limit, algorithm, &check.key, *lookup, now)
            {
                decisions.push(Decision::of_one(now, Role::Binding, algorithm.outcome_of_one(spent, now)));
            } else {
                cold_path();
                self.decide_into(checks, these, now, decisions)?;
            }
        }
        Ok(())
    }

    /// Refunds the first requests of a batch, given their decisions.
    #[cold]
    fn undo(&self, batch: &[&[Check<'_>]], decisions: impl Iterator<Item = Decision>, now: Timestamp) {
        let charged = batch.iter().zip(decisions).flat_map(|(checks, decision)| decision.refunds(checks));
        for refund in charged {
            self.refund_counter(&[refund], now);
        }
    }

    /// Decides with all locks taken first.
    #[cold]
    #[inline(never)]
    fn decide_locked(&self, checks: &[Check<'_>], lookups: &[KeyLookup], now: Timestamp) -> Decision {
        let decision = self.with_locks(self.in_force(checks, lookups, now), now, |locked| {
            locked.adopt();
            decide(checks, now, locked)
        });
        self.sampled(checks, lookups, decision)
    }

    fn sampled(&self, checks: &[Check<'_>], lookups: &[KeyLookup], decision: Decision) -> Decision {
        for (check, lookup) in checks.iter().zip(lookups) {
            self.heavy_hitters.sample(&check.key, lookup.hash, decision.at, decision.passes());
        }
        decision
    }

    /// Resolves the limit that applies to each check.
    fn in_force(
        &self,
        checks: &[Check<'_>],
        lookups: &[KeyLookup],
        now: Timestamp,
    ) -> SmallVec<[ResolvedCheck; 4]> {
        let mut resolved = SmallVec::new();
        for (check, KeyLookup { hash, number, .. }) in checks.iter().zip(lookups) {
            resolved.push(match self.overrides.in_force(&check.key, now) {
                Some(limit) => ResolvedCheck { hash: *hash, limit, number: self.table.number(&limit, now) },
                None => ResolvedCheck { hash: *hash, limit: *check.limit, number: *number },
            });
        }
        resolved
    }

    /// Locks the counters of these keys and calls `act`.
    fn with_locks<R>(
        &self,
        mut resolved: SmallVec<[ResolvedCheck; 4]>,
        now: Timestamp,
        act: impl FnOnce(&mut LockedCounters<'_>) -> R,
    ) -> R {
        loop {
            let error = match LockedCounters::lock(&self.table, &self.metrics, &resolved, now) {
                Ok(mut locked) => return act(&mut locked),
                Err(error) => error,
            };
            match error {
                LockError::Busy => crate::sync::yield_now(),
                LockError::Retired => {
                    for resolved in &mut resolved {
                        resolved.number = self.table.number(&resolved.limit, now);
                    }
                }
            }
        }
    }

    fn peek_now(&self, checks: &[Check<'_>], now: Timestamp) -> Decision {
        let mut lookups = self.look_up_all(checks);
        self.number_all(checks, &mut lookups, now);
        let resolved = self.in_force(checks, &lookups, now);
        self.with_locks(resolved, now, |locked| peek(checks, now, locked))
    }

    fn refund_now(&self, refunds: &[Refund<'_>], now: Timestamp) -> bool {
        let is_same = |one: &Refund<'_>, next: &Refund<'_>| one.key == next.key && one.limit == next.limit;
        let mut contained = false;
        for refunds in refunds.chunk_by(is_same) {
            contained |= self.refund_counter(refunds, now);
        }
        contained
    }

    /// Makes refunds of one counter and limit, in one step. Refunds only if the counter still uses the limit of the charge.
    /// Returns whether it contained any of it.
    fn refund_counter(&self, refunds: &[Refund<'_>], now: Timestamp) -> bool {
        // At one moment, all refunds of a counter whose limit is known have the same one.
        let known = |refund| Some((refund, self.overrides.limit_of_charge(refund, now)?));
        let mut refunds = refunds.iter().filter_map(known).peekable();
        let Some((Refund { key, .. }, limit)) = refunds.peek() else { return false };
        let number = self.table.limits.find_or_revive(limit).unwrap_or(CARRIED);
        let resolved = ResolvedCheck { hash: self.hasher.hash(key), limit: *limit, number };
        self.with_locks(smallvec![resolved], now, |locked| {
            let contained = Cell::new(false);
            for (Refund { charged, cost, .. }, _) in refunds {
                if locked.counts_under_its_limit(0) {
                    locked.change(0, |limit, state| {
                        contained.set(contained.get() | limit.refund(state, *charged, now, *cost));
                    });
                }
            }
            contained.get()
        })
    }

    /// Gives each of `limits` a number until the result is dropped, or changes nothing.
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

/// A key's hash and home line, and its limit's number.
#[derive(Clone, Copy, Debug)]
struct KeyLookup {
    hash: u64,
    home: usize,
    number: u16,
}

type KeyLookups = SmallVec<[KeyLookup; 4]>;

/// Decides when polled; always ready.
struct DecideFuture<'s, 'c, 'k> {
    store: &'s MemoryStore,
    checks: &'c [Check<'k>],
    now: Timestamp,
}

impl Future for DecideFuture<'_, '_, '_> {
    type Output = Result<Decision, StoreError>;

    #[expect(clippy::inline_always, reason = "see decide_now")]
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

    #[expect(clippy::inline_always, reason = "see decide_now")]
    #[inline(always)]
    fn try_decide(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        Some(self.decide_now(checks, now))
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        self.decide_batch_now(batch, now, decisions)
    }

    #[inline]
    fn try_decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Option<Result<(), StoreError>> {
        Some(self.decide_batch_now(batch, now, decisions))
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        Ok(self.peek_now(checks, now))
    }

    fn try_peek(&self, checks: &[Check<'_>], now: Timestamp) -> Option<Result<Decision, StoreError>> {
        Some(Ok(self.peek_now(checks, now)))
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<bool, StoreError> {
        Ok(self.refund_now(refunds, now))
    }

    fn try_refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Option<Result<bool, StoreError>> {
        Some(Ok(self.refund_now(refunds, now)))
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
