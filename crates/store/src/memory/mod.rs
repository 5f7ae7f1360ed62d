//! The in-memory store: counters of this process, within a cap of bytes.
//!
//! A key is a seeded 64-bit hash. Its high bits say which cache line is its home, its low bits stand in the
//! slot, beside a state packed into one word: one line is all that an ordinary check touches. `bucket` is a
//! line, `table` says where keys live, `decision` decides with locks held. This file has the fast way: one check,
//! its counter at home, read without a lock; a refusal writes nothing, and what passes takes the lock for the
//! few instructions that store the new word.

#![allow(clippy::cast_possible_truncation, reason = "bits of hashes and tags are cut on purpose")]

mod bucket;
mod decision;
mod limits;
mod metrics;
mod overrides;
mod pool;
mod prefetch;
mod table;
mod top;

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::RandomState;
use smallvec::SmallVec;
use tidegate_core::{Check, Cost, Decision, Key, Limit, Outcomes, Refund, Role, Timestamp, decide, peek};

use crate::entry::Override;
use crate::store::{Store, StoreError};
use bucket::{Bucket, Tag, Word};
use decision::{Asked, Held};
use metrics::Metrics;
use overrides::Overrides;
use pool::Pool;
use table::Table;
pub use top::HeavyKey;
use top::Top;

/// At this share of its slots a table is as full as it should get: of a million keys about six then find all
/// of their eight lines full.
const FILL: f64 = 0.5;
/// So many bytes for each slot; a line holds four.
const SLOT_BYTES: usize = size_of::<Bucket>() / bucket::SLOTS;
/// One part of so many is for states that do not fit a slot.
const POOL_SHARE: usize = 8;
/// Times are packed relative to 2026-01-01: for decades of them there is room.
const ORIGIN: Timestamp = Timestamp::from_secs(1_767_225_600);

/// Counters in this process, in a table of fixed size.
///
/// The cap is taken at the start and never exceeded. When keys that still count fill it, newcomers share
/// counters: they are limited too, only together. No key that still counts is ever forgotten for another.
#[derive(Debug)]
pub struct MemoryStore {
    table: Table,
    hasher: RandomState,
    overrides: Overrides,
    metrics: Metrics,
    top: Top,
}

/// How full a store is, and what that costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of the table, taken at the start.
    pub table_bytes: u64,
    /// Bytes in use for states that do not fit a slot: logs, mostly.
    pub pool_bytes: u64,
    /// Checks charged to a shared counter, since the start.
    pub overflowed: u64,
}

impl MemoryStore {
    /// A store that takes at most `bytes`, and at least a few kilobytes.
    pub fn with_cap(bytes: usize) -> Self {
        let pool = Pool::new((bytes / POOL_SHARE) as u64);
        let lines = (bytes - bytes / POOL_SHARE) / size_of::<Bucket>();
        Self {
            table: Table::new(lines, pool, ORIGIN),
            hasher: RandomState::default(),
            overrides: Overrides::default(),
            metrics: Metrics::default(),
            top: Top::default(),
        }
    }

    /// The cap that a store for so many live keys needs.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a size in bytes need not be exact"
    )]
    pub fn cap_for(keys: usize) -> usize {
        let table = keys as f64 / FILL * SLOT_BYTES as f64;
        (table * POOL_SHARE as f64 / (POOL_SHARE - 1) as f64).ceil() as usize
    }

    /// How full it is.
    pub fn memory_use(&self) -> MemoryUse {
        MemoryUse {
            table_bytes: (self.table.slots() * SLOT_BYTES) as u64,
            pool_bytes: self.table.pool.used(),
            overflowed: self.metrics.overflows(),
        }
    }

    /// The heaviest keys of each rule, heaviest first, by a sample of all decisions.
    pub fn heaviest(&self) -> Vec<HeavyKey> {
        self.top.heaviest()
    }

    #[inline]
    fn hash(&self, key: Key<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(key.rule.as_u64());
        hasher.write(key.client);
        hasher.finish()
    }

    #[inline]
    fn decide_hashed(
        &self,
        checks: &[Check<'_>],
        hashes: &[u64],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        let decision = match (checks, hashes) {
            ([check], [hash]) => match self.decide_at_home(check, *hash, now) {
                Some(decision) => decision,
                None => self.decide_held(checks, hashes, now)?,
            },
            _ => self.decide_held(checks, hashes, now)?,
        };
        for (check, hash) in checks.iter().zip(hashes) {
            self.top.sample(check.key, *hash, now, decision.passes());
        }
        Ok(decision)
    }

    /// The fast way; `None` if it does not lead to a decision.
    #[inline]
    fn decide_at_home(&self, check: &Check<'_>, hash: u64, now: Timestamp) -> Option<Decision> {
        if self.overrides.in_force(check.key, now).is_some() {
            return None;
        }
        let number = self.table.limits.number(check.limit)?;
        let line = self.table.line(self.table.home(hash));
        let wanted = Tag::new(hash, 0, number);
        let (slot, tag) = line.find(wanted)?;
        let Word::Packed(word) = line.word(slot) else { return None };
        if tag != wanted {
            return None;
        }
        let (outcome, next) = check.limit.step_word(word, self.table.origin, now, check.cost);
        if outcome.verdict.is_pass() {
            if check.cost > Cost::ZERO {
                let locked = line.lock();
                if locked.tag(slot) != tag || locked.word(slot) != Word::Packed(word) {
                    return None;
                }
                locked.set_word(slot, Word::Packed(next?));
            }
        } else if check.role == Role::Overage || line.tag(slot) != tag {
            return None;
        }
        let mut outcomes = Outcomes::new();
        outcomes.push(outcome);
        Some(Decision::new(now, std::slice::from_ref(check), outcomes))
    }

    fn decide_held(
        &self,
        checks: &[Check<'_>],
        hashes: &[u64],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        self.with_held(&self.limits_in_force(checks, now), hashes, now, |held| {
            held.adopt();
            decide(checks, now, held)
        })
    }

    fn limits_in_force(&self, checks: &[Check<'_>], now: Timestamp) -> SmallVec<[Limit; 4]> {
        let in_force = |check: &Check<'_>| self.overrides.in_force(check.key, now).unwrap_or(*check.limit);
        checks.iter().map(in_force).collect()
    }

    /// Locks what keys with these hashes need under these limits, and acts.
    fn with_held<R>(
        &self,
        limits: &[Limit],
        hashes: &[u64],
        now: Timestamp,
        act: impl FnOnce(&mut Held<'_>) -> R,
    ) -> Result<R, StoreError> {
        let mut asked = SmallVec::<[Asked<'_>; 4]>::new();
        for (limit, hash) in limits.iter().zip(hashes) {
            let number = self.table.limits.number(limit).ok_or(StoreError::TooManyLimits)?;
            asked.push(Asked { hash: *hash, limit, number });
        }
        loop {
            match Held::lock(&self.table, &self.metrics, &asked, now) {
                Ok(mut held) => return Ok(act(&mut held)),
                Err(decision::Busy) => crate::sync::yield_now(),
            }
        }
    }

    fn hashes<'a>(&self, keys: impl Iterator<Item = Key<'a>>) -> SmallVec<[u64; 16]> {
        let hash_and_prefetch = |key| {
            let hash = self.hash(key);
            self.table.prefetch(hash);
            hash
        };
        keys.map(hash_and_prefetch).collect()
    }

    fn peek_now(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let hashes = self.hashes(checks.iter().map(|check| check.key));
        self.with_held(&self.limits_in_force(checks, now), &hashes, now, |held| peek(checks, now, held))
    }

    /// Gives back only what was charged under the limit that still counts.
    fn refund_one(&self, refund: &Refund<'_>, now: Timestamp) -> Result<(), StoreError> {
        if self.overrides.touch(refund, now) {
            return Ok(());
        }
        self.with_held(&[*refund.limit], &[self.hash(refund.key)], now, |held| {
            if held.counts_under_its_limit(0) {
                held.change(0, |limit, state| limit.refund(state, refund.charged, now, refund.cost));
            }
        })
    }
}

impl Store for MemoryStore {
    async fn decide(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let hashes = self.hashes(checks.iter().map(|check| check.key));
        self.decide_hashed(checks, &hashes, now)
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let before = decisions.len();
        decisions.reserve(batch.len());
        let hashes = self.hashes(batch.iter().flat_map(|checks| checks.iter().map(|check| check.key)));
        let mut rest = hashes.as_slice();
        for checks in batch {
            let (these, others) = rest.split_at(checks.len());
            rest = others;
            match self.decide_hashed(checks, these, now) {
                Ok(decision) => decisions.push(decision),
                Err(error) => {
                    decisions.truncate(before);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.peek_now(checks, now)
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        refunds.iter().try_for_each(|refund| self.refund_one(refund, now))
    }

    async fn reset(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.table.forget(self.hash(key));
        Ok(())
    }

    async fn override_limit(
        &self,
        key: Key<'_>,
        instead: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.overrides.set(key, instead, now);
        Ok(())
    }
}
