//! The in-memory store: counters of this process, within a cap of bytes.
//!
//! A key is a seeded 64-bit hash. Its high bits say which cache line is its home, its low bits stand in the
//! slot, beside a state packed into one word: one line is all that an ordinary check touches. `bucket` is a
//! line, `table` says where keys live. `fast` is the way of almost all decisions: a refusal writes nothing, and
//! what passes replaces the words it has read. `decision` is the way of the rest, with locks held from the start.

#![allow(clippy::cast_possible_truncation, reason = "bits of hashes and tags are cut on purpose")]

mod bucket;
mod decision;
mod fast;
pub(crate) mod hash;
mod hint;
mod limits;
mod metrics;
mod overrides;
mod pool;
mod table;
mod top;

use std::hint::cold_path;
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tidegate_core::{Check, Decision, Key, Kind, Limit, Refund, Role, Timestamp, decide, peek};

use crate::entry::Override;
use crate::store::{Store, StoreError};
use bucket::Bucket;
use decision::{Asked, Held};
use fast::{DecideOne, is_ordinary};
use hash::KeyHasher;
use metrics::Metrics;
use overrides::Overrides;
use pool::Pool;
use table::Table;
pub use top::HeavyKey;
use top::Top;

/// At this share of its slots a table is as full as it should get: of a million keys about nine then find all
/// of their sixteen lines full.
const FILL: f64 = 0.65;
/// Fewer bytes are not worth saving: with some room to spare, almost every key lives in its home.
const SMALL: usize = 128 * 1024;
/// So many bytes for each slot; a line holds four.
const SLOT_BYTES: usize = size_of::<Bucket>() / bucket::SLOTS;
/// One part of so many is for states that do not fit a slot.
const POOL_SHARE: usize = 8;

/// Counters in this process, in a table of fixed size.
///
/// The table is taken at the start and never grows. When keys that still count fill it, newcomers share
/// counters: they are limited too, only together. No key that still counts is ever forgotten for another.
#[derive(Debug)]
pub struct MemoryStore {
    table: Table,
    hasher: KeyHasher,
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
    /// Checks judged by a shared counter, since the start.
    pub overflowed: u64,
}

impl MemoryStore {
    /// A store whose counters take at most `bytes`, and at least a few kilobytes; less than 0.2 MB of books stand
    /// beside them.
    pub fn with_cap(bytes: usize) -> Self {
        let pool = Pool::new((bytes / POOL_SHARE) as u64);
        let lines = (bytes - bytes / POOL_SHARE) / size_of::<Bucket>();
        Self {
            table: Table::new(lines, pool),
            hasher: KeyHasher::random(),
            overrides: Overrides::default(),
            metrics: Metrics::default(),
            top: Top::default(),
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
        }
    }

    /// The heaviest keys of each rule, heaviest first, by a sample of all decisions.
    pub fn heaviest(&self) -> Vec<HeavyKey> {
        self.top.heaviest()
    }

    /// What the table needs to know of a check; `None` if there are too many limits.
    #[expect(clippy::inline_always, reason = "a few instructions of every decision")]
    #[inline(always)]
    fn ask(&self, key: &Key<'_>, limit: &Limit) -> Option<Ask> {
        Some(self.ask_of(key, self.table.limits.number(limit)?))
    }

    #[expect(clippy::inline_always, reason = "a few instructions of every decision")]
    #[inline(always)]
    fn ask_of(&self, key: &Key<'_>, number: u16) -> Ask {
        let hash = self.hasher.hash(key);
        Ask { hash, home: self.table.home(hash), number }
    }

    /// The same for several, whose lines are all asked for before the first is looked at.
    fn ask_all(&self, checks: &[Check<'_>]) -> Result<SmallVec<[Ask; 4]>, StoreError> {
        let mut asks = SmallVec::new();
        for check in checks {
            let ask = self.ask(&check.key, check.limit).ok_or(StoreError::TooManyLimits)?;
            self.table.prefetch(ask.home);
            asks.push(ask);
        }
        Ok(asks)
    }

    #[expect(clippy::inline_always, reason = "what a caller does not ask of a decision is not computed")]
    #[inline(always)]
    fn decide_now(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        // One algorithm is small enough to be part of every caller.
        if let [check] = checks
            && let Kind::TokenBucket(meter) = check.limit.kind()
            && is_ordinary(check)
            && let Some(number) = self.table.limits.likely_number(check.limit)
            && let Some(spent) = self.spend(meter, &check.key, self.ask_of(&check.key, number), now)
        {
            let outcome = meter.outcome_of_one(spent, now);
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
        self.decide_apart(checks, now)
    }

    #[inline(never)]
    fn decide_apart(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.decide_asked(checks, &self.ask_all(checks)?, now)
    }

    #[inline(never)]
    fn decide_asked(
        &self,
        checks: &[Check<'_>],
        asks: &[Ask],
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        if let ([check], [ask]) = (checks, asks) {
            return check.limit.visit(DecideOne { store: self, check, ask: *ask, now });
        }
        match self.try_several(checks, asks, now) {
            Some(decision) => Ok(self.sampled(checks, asks, decision)),
            None => self.decide_held(checks, now),
        }
    }

    #[inline(never)]
    fn decide_into(
        &self,
        checks: &[Check<'_>],
        asks: &[Ask],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        decisions.push(self.decide_asked(checks, asks, now)?);
        Ok(())
    }

    /// All lines are asked for before the first is looked at.
    #[inline(never)]
    fn decide_batch_now(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        let mut asks = SmallVec::<[Ask; 16]>::new();
        for checks in batch {
            for check in *checks {
                let ask = self.ask(&check.key, check.limit).ok_or(StoreError::TooManyLimits)?;
                self.table.prefetch(ask.home);
                asks.push(ask);
            }
        }
        let first = decisions.len();
        decisions.reserve(batch.len());
        let mut rest = asks.as_slice();
        for checks in batch {
            let (these, others) = rest.split_at(checks.len());
            rest = others;
            if let ([check], [ask]) = (checks, these)
                && let Kind::TokenBucket(meter) = check.limit.kind()
                && is_ordinary(check)
                && let Some(spent) = self.spend(meter, &check.key, *ask, now)
            {
                decisions.push(Decision::of_one(now, Role::Binding, meter.outcome_of_one(spent, now)));
            } else {
                cold_path();
                if let Err(error) = self.decide_into(checks, these, now, decisions) {
                    decisions.truncate(first);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// With all locks held from the start.
    #[cold]
    #[inline(never)]
    fn decide_held(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let asks = self.ask_all(checks)?;
        let decision = self.with_held(&self.in_force(checks, &asks, now), now, |held| {
            held.adopt();
            decide(checks, now, held)
        });
        Ok(self.sampled(checks, &asks, decision))
    }

    fn sampled(&self, checks: &[Check<'_>], asks: &[Ask], decision: Decision) -> Decision {
        for (check, ask) in checks.iter().zip(asks) {
            self.top.sample(&check.key, ask.hash, decision.at, decision.passes());
        }
        decision
    }

    /// The limits in force. Those of overrides got their numbers when they began.
    fn in_force(&self, checks: &[Check<'_>], asks: &[Ask], now: Timestamp) -> SmallVec<[Asked; 4]> {
        let in_force = |(check, ask): (&Check<'_>, &Ask)| {
            let instead = self.overrides.in_force(&check.key, now);
            let instead = instead.and_then(|limit| Some((limit, self.table.limits.number(&limit)?)));
            let (limit, number) = instead.unwrap_or((*check.limit, ask.number));
            Asked { hash: ask.hash, limit, number }
        };
        checks.iter().zip(asks).map(in_force).collect()
    }

    /// Locks what these keys need, and acts.
    fn with_held<R>(&self, asked: &[Asked], now: Timestamp, act: impl FnOnce(&mut Held<'_>) -> R) -> R {
        loop {
            match Held::lock(&self.table, &self.metrics, asked, now) {
                Ok(mut held) => return act(&mut held),
                Err(decision::Busy) => crate::sync::yield_now(),
            }
        }
    }

    fn peek_now(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        let asked = self.in_force(checks, &self.ask_all(checks)?, now);
        Ok(self.with_held(&asked, now, |held| peek(checks, now, held)))
    }

    /// Gives back only what was charged under the limit that still counts.
    fn refund_one(&self, refund: &Refund<'_>, now: Timestamp) -> Result<(), StoreError> {
        if self.overrides.touch(refund, now) {
            return Ok(());
        }
        let ask = self.ask(&refund.key, refund.limit).ok_or(StoreError::TooManyLimits)?;
        let asked = Asked { hash: ask.hash, limit: *refund.limit, number: ask.number };
        self.with_held(&[asked], now, |held| {
            if held.counts_under_its_limit(0) {
                held.change(0, |limit, state| limit.refund(state, refund.charged, now, refund.cost));
            }
        });
        Ok(())
    }
}

/// A key's hash and home, and its limit's number.
#[derive(Clone, Copy, Debug)]
struct Ask {
    hash: u64,
    home: usize,
    number: u16,
}

/// Decides when it is polled, and never waits.
struct Deciding<'s, 'c, 'k> {
    store: &'s MemoryStore,
    checks: &'c [Check<'k>],
    now: Timestamp,
}

impl Future for Deciding<'_, '_, '_> {
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
        Deciding { store: self, checks, now }
    }

    async fn decide_batch(
        &self,
        batch: &[&[Check<'_>]],
        now: Timestamp,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        self.decide_batch_now(batch, now, decisions)
    }

    async fn peek(&self, checks: &[Check<'_>], now: Timestamp) -> Result<Decision, StoreError> {
        self.peek_now(checks, now)
    }

    async fn refund(&self, refunds: &[Refund<'_>], now: Timestamp) -> Result<(), StoreError> {
        refunds.iter().try_for_each(|refund| self.refund_one(refund, now))
    }

    async fn reset(&self, key: Key<'_>) -> Result<(), StoreError> {
        self.table.forget(self.hasher.hash(&key));
        Ok(())
    }

    async fn override_limit(
        &self,
        key: Key<'_>,
        instead: Option<Override>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if let Some(instead) = &instead {
            self.table.limits.number(&instead.limit).ok_or(StoreError::TooManyLimits)?;
        }
        self.overrides.set(key, instead, now);
        Ok(())
    }
}

/// Every interleaving of two threads on one table, by loom: `cargo xtask loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;
    use tidegate_core::{Algorithm, RuleId, Span, Spec};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    /// A table of as few lines as can be; the seed of the hashes is fixed, as loom needs it.
    fn store() -> Arc<MemoryStore> {
        Arc::new(MemoryStore {
            table: Table::new(1, Pool::new(0)),
            hasher: KeyHasher::fixed(),
            overrides: Overrides::default(),
            metrics: Metrics::default(),
            top: Top::default(),
        })
    }

    /// Every interleaving with at most three preemptions: what more would find has not been seen yet, and takes
    /// minutes.
    fn model(test: impl Fn(Algorithm) + Copy + Sync + Send + 'static) {
        // One that has a way of its own, and one for all others.
        for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow] {
            let mut model = loom::model::Builder::new();
            model.preemption_bound = Some(3);
            model.check(move || test(algorithm));
        }
    }

    fn decide(store: &MemoryStore, algorithm: Algorithm, clients: &[&'static [u8]], requests: u64) -> bool {
        let spec = Spec::new(requests, Span::from_secs(60));
        let limit = Limit::new(algorithm, spec).expect("a valid limit");
        let check = |client: &&'static [u8]| Check::new(Key::new(RuleId::named("rule"), client), &limit);
        let checks: Vec<_> = clients.iter().map(check).collect();
        store.decide_now(&checks, NOW).expect("there are few limits").passes()
    }

    /// Two threads ask at once for what `clients` name; how many passed.
    fn race(
        store: &Arc<MemoryStore>,
        algorithm: Algorithm,
        clients: [&'static [&'static [u8]]; 2],
        requests: u64,
    ) -> usize {
        let racers = clients.map(|clients| {
            let store = Arc::clone(store);
            thread::spawn(move || decide(&store, algorithm, clients, requests))
        });
        racers
            .map(|racer| racer.join().expect("no racer panics"))
            .into_iter()
            .filter(|passed| *passed)
            .count()
    }

    #[test]
    fn loom_two_newcomers_of_one_name_are_one_key() {
        model(|algorithm| assert_eq!(race(&store(), algorithm, [&[b"a"], &[b"a"]], 1), 1));
    }

    #[test]
    fn loom_one_unit_of_a_known_key_passes_once() {
        model(|algorithm| {
            let store = store();
            assert!(decide(&store, algorithm, &[b"a"], 2));
            assert_eq!(race(&store, algorithm, [&[b"a"], &[b"a"]], 2), 1);
        });
    }

    #[test]
    fn loom_one_check_and_several_on_its_key_pass_once() {
        model(|algorithm| {
            let store = store();
            assert!(decide(&store, algorithm, &[b"a", b"b"], 2));
            assert_eq!(race(&store, algorithm, [&[b"a"], &[b"a", b"b"]], 2), 1);
            assert!(!decide(&store, algorithm, &[b"a"], 2));
        });
    }

    #[test]
    fn loom_checks_in_opposite_order_never_wait_for_each_other_and_pass_once() {
        model(|algorithm| {
            let store = store();
            assert!(decide(&store, algorithm, &[b"a", b"b"], 2));
            assert_eq!(race(&store, algorithm, [&[b"a", b"b"], &[b"b", b"a"]], 2), 1);
            assert!(!decide(&store, algorithm, &[b"a"], 2));
            assert!(!decide(&store, algorithm, &[b"b"], 2), "both were charged together");
        });
    }
}
