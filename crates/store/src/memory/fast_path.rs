//! The path of almost all decisions: every counter is packed in its slot under the requested limit.
//!
//! Counters are read and evaluated without a lock. A rejection writes nothing. An admission replaces the word it has read;
//! if the word has changed meanwhile, it is evaluated again. For several counters, all words are locked first, if they are
//! unchanged, and then replaced together. In any other case the fast path returns no result and changes nothing.
//!
//! The number must belong to the limit after a counter was read, not only before: see `limit_registry`.

use smallvec::SmallVec;
use tidegate_core::{
    AlgorithmKind, AlgorithmVisitor, Check, Cost, CounterKey, Decision, Limit, Outcome, Outcomes,
    RateAlgorithm, Role, StepResult, Timestamp, TokenBucket, UnitCharge,
};

use super::cache_line::{LINES, SlotSnapshot, Tag, WordLock, spin_until};
use super::table::ORIGIN;
use super::{KeyLookup, MemoryStore};
use crate::store::StoreError;

/// Why the fast path has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FastPathMiss {
    /// The counter is not in a slot, not packed, or locked, or the step does not fit a word.
    Ineligible,
    /// Another thread has just changed the counter, or it is not in its home line: try the longer search.
    Contended,
}

/// Whether a check is of the most common kind: one unit, binding.
#[expect(clippy::inline_always, reason = "on the path of almost every decision")]
#[inline(always)]
pub(super) fn is_common(check: &Check<'_>) -> bool {
    check.cost == Cost::ONE && check.role == Role::Binding
}

impl MemoryStore {
    /// Charges a common check to a token bucket. The caller derives what it needs from the result.
    #[expect(clippy::inline_always, reason = "on the path of almost every decision")]
    #[inline(always)]
    pub(super) fn spend(
        &self,
        limit: &Limit,
        algorithm: &TokenBucket,
        key: &CounterKey<'_>,
        lookup: KeyLookup,
        now: Timestamp,
    ) -> Option<UnitCharge> {
        if self.overrides.is_used() {
            return None;
        }
        let at_home = self.table.line(lookup.home).snapshot(Tag::new(lookup.hash, 0, lookup.number));
        let spent = at_home
            .ok_or(FastPathMiss::Contended)
            .and_then(|slot| self.spend_at(limit, algorithm, key, lookup, slot, now));
        match spent {
            Ok(spent) => Some(spent),
            Err(FastPathMiss::Contended) => {
                // A copy, so that the key of any other decision need not be in memory.
                let key = *key;
                self.spend_contended(limit, &key, lookup.hash, lookup.number, now)
            }
            Err(FastPathMiss::Ineligible) => None,
        }
    }

    /// Like `spend`, for a key outside its home line or one that another thread charges too.
    #[inline(never)]
    fn spend_contended(
        &self,
        limit: &Limit,
        key: &CounterKey<'_>,
        hash: u64,
        number: u16,
        now: Timestamp,
    ) -> Option<UnitCharge> {
        let AlgorithmKind::TokenBucket(algorithm) = limit.kind() else { return None };
        let lookup = KeyLookup { hash, home: self.table.home(hash), number };
        let slot = self.snapshot(lookup)?;
        spin_until(|| match self.spend_at(limit, algorithm, key, lookup, slot, now) {
            Ok(spent) => Some(Some(spent)),
            Err(FastPathMiss::Contended) => None,
            Err(FastPathMiss::Ineligible) => Some(None),
        })
    }

    #[expect(clippy::inline_always, reason = "on the path of almost every decision")]
    #[inline(always)]
    fn spend_at(
        &self,
        limit: &Limit,
        algorithm: &TokenBucket,
        key: &CounterKey<'_>,
        KeyLookup { hash, number, .. }: KeyLookup,
        slot: SlotSnapshot<'_>,
        now: Timestamp,
    ) -> Result<UnitCharge, FastPathMiss> {
        let word = self.packed(slot, number, limit).ok_or(FastPathMiss::Ineligible)?;
        match algorithm.spend_one(word, ORIGIN, now) {
            Some((spent, Some(next))) if slot.replace(word, next) => {
                self.heavy_hitters.sample(key, hash, now, true);
                Ok(UnitCharge::Admitted(spent))
            }
            Some((spent, None)) => {
                self.heavy_hitters.sample(key, hash, now, false);
                Ok(UnitCharge::Rejected(spent))
            }
            Some(_) => Err(FastPathMiss::Contended),
            None => Err(FastPathMiss::Ineligible),
        }
    }

    /// Evaluates and charges a single check.
    fn try_one<M: RateAlgorithm>(
        &self,
        algorithm: &M,
        check: &Check<'_>,
        lookup: KeyLookup,
        now: Timestamp,
    ) -> Option<Outcome> {
        let slot = self.find(check, lookup, now)?;
        let outcome = spin_until(|| {
            let stepped = self
                .packed(slot, lookup.number, check.limit)
                .and_then(|word| Some((word, algorithm.step_word(word, ORIGIN, now, check.cost)?)));
            let Some((word, StepResult { outcome, next })) = stepped else { return Some(None) };
            match outcome.verdict.is_pass() {
                true if check.cost == Cost::ZERO => Some(Some(outcome)),
                // If another thread changed the word first, evaluate the new word.
                true => slot.replace(word, next).then_some(Some(outcome)),
                false if check.role == Role::Overage => Some(None),
                false => Some(Some(outcome)),
            }
        })?;
        self.heavy_hitters.sample(&check.key, lookup.hash, now, outcome.verdict.is_pass());
        Some(outcome)
    }

    /// Decides several checks.
    pub(super) fn try_several(
        &self,
        checks: &[Check<'_>],
        lookups: &[KeyLookup],
        now: Timestamp,
    ) -> Option<Decision> {
        let mut outcomes = Outcomes::new();
        let mut updates = SmallVec::<[PlannedUpdate<'_>; 4]>::new();
        for (position, (check, lookup)) in checks.iter().zip(lookups).enumerate() {
            // Checks that share a key add up, and overage is charged even if it does not fit.
            if check.role == Role::Overage
                || lookups[..position].iter().any(|other| other.hash == lookup.hash)
            {
                return None;
            }
            let slot = self.find(check, *lookup, now)?;
            let word = self.packed(slot, lookup.number, check.limit)?;
            let StepResult { outcome, next } = check.limit.step_word(word, ORIGIN, now, check.cost)?;
            outcomes.push(outcome);
            updates.push(PlannedUpdate { slot, word, next });
        }
        let mut decision = Decision::new(now, checks, outcomes);
        if decision.passes() {
            charge_all(checks, &decision.outcomes, &updates)?;
        } else {
            for ((check, update), outcome) in checks.iter().zip(&updates).zip(&mut decision.outcomes) {
                if outcome.verdict.is_pass() {
                    let left = check.limit.step_word(update.word, ORIGIN, now, Cost::ZERO)?.outcome;
                    *outcome = Outcome { verdict: outcome.verdict, ..left };
                }
            }
            // If no word has changed since, all were read at one instant.
            if updates.iter().any(|update| update.slot.packed() != Some(update.word)) {
                return None;
            }
        }
        Some(decision)
    }

    /// The slot of a check's counter, if the counter is in a slot under the requested limit.
    #[inline]
    fn find(&self, check: &Check<'_>, lookup: KeyLookup, now: Timestamp) -> Option<SlotSnapshot<'_>> {
        match self.overrides.in_force(&check.key, now) {
            Some(_) => None,
            None => self.snapshot(lookup),
        }
    }

    /// The state in the slot, if it is packed and counted under `limit`.
    #[expect(clippy::inline_always, reason = "on the path of almost every decision")]
    #[inline(always)]
    fn packed(&self, slot: SlotSnapshot<'_>, number: u16, limit: &Limit) -> Option<u64> {
        slot.packed().filter(|_| self.table.limits.belongs_to(number, limit))
    }

    #[inline]
    fn snapshot(&self, KeyLookup { hash, home, number }: KeyLookup) -> Option<SlotSnapshot<'_>> {
        let line = self.table.line(home);
        line.snapshot(Tag::new(hash, 0, number)).or_else(|| {
            let snapshot_in = |away| self.table.line(home + away).snapshot(Tag::new(hash, away, number));
            if line.has_spilled() { (1..LINES).find_map(snapshot_in) } else { None }
        })
    }
}

/// Decides a single check; compiled separately for each algorithm.
pub(super) struct DecideOne<'a> {
    pub(super) store: &'a MemoryStore,
    pub(super) check: &'a Check<'a>,
    pub(super) lookup: KeyLookup,
    pub(super) now: Timestamp,
}

impl AlgorithmVisitor for DecideOne<'_> {
    type Output = Result<Decision, StoreError>;

    #[inline(never)]
    fn visit<M: RateAlgorithm>(self, algorithm: &M) -> Result<Decision, StoreError> {
        let Self { store, check, lookup, now } = self;
        match store.try_one(algorithm, check, lookup, now) {
            Some(outcome) => Ok(Decision::of_one(now, check.role, outcome)),
            None => store.decide_fallback(std::slice::from_ref(check), &mut [lookup], now),
        }
    }
}

/// A counter as it was read, and its next word if it is charged.
#[derive(Clone, Copy, Debug)]
struct PlannedUpdate<'t> {
    slot: SlotSnapshot<'t>,
    word: u64,
    next: u64,
}

/// Stores all new words, or nothing if any counter has changed.
fn charge_all(checks: &[Check<'_>], outcomes: &[Outcome], updates: &[PlannedUpdate<'_>]) -> Option<()> {
    let mut locked = SmallVec::<[(WordLock<'_>, u64); 4]>::new();
    for ((check, outcome), update) in checks.iter().zip(outcomes).zip(updates) {
        if outcome.verdict.is_pass() && check.cost > Cost::ZERO {
            locked.push((update.slot.lock(update.word)?, update.next));
        }
    }
    for (word, next) in &mut locked {
        word.set(*next);
    }
    Some(())
}
